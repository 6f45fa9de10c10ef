class _Handle:
    reserved = b""


cudaIpcMemHandle_t = cudaMemPoolPtrExportData = cudaIpcEventHandle_t = _Handle
