# SPDX-License-Identifier: Apache-2.0
class DeviceNDArray:
    def __init__(self, shape, strides, dtype, gpu_data):
        self.shape, self.strides, self.dtype, self.gpu_data = shape, strides, dtype, gpu_data
