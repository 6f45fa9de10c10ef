# SPDX-License-Identifier: Apache-2.0
import ctypes

cu_device_ptr = ctypes.c_uint64
cu_ipc_mem_handle = ctypes.c_byte * 64
