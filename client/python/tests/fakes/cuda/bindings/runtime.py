# SPDX-License-Identifier: Apache-2.0
class _Handle:
    reserved = b""


cudaIpcMemHandle_t = cudaMemPoolPtrExportData = cudaIpcEventHandle_t = _Handle
