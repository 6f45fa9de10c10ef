# SPDX-License-Identifier: Apache-2.0
import numpy as np

from . import Tensor


class Parameter(Tensor):
    def __init__(self, tensor, requires_grad=True):
        super().__init__(tensor.array, tensor.dtype)
        self.device, self.requires_grad = tensor.device, requires_grad


class Module:
    def __init__(self):
        self._parameters, self._buffers, self._modules = {}, {}, {}
        self._non_persistent_buffers_set = set()

    def __setattr__(self, name, value):
        if isinstance(value, Parameter):
            self._parameters[name] = value
        elif isinstance(value, Module):
            self._modules[name] = value
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name):
        for table in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__.get(table, {}):
                return self.__dict__[table][name]
        raise AttributeError(name)

    def register_buffer(self, name, tensor, persistent=True):
        self._buffers[name] = tensor
        if not persistent:
            self._non_persistent_buffers_set.add(name)

    def named_modules(self, prefix="", remove_duplicate=True):
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(f"{prefix}.{name}" if prefix else name)

    def _named(self, table):
        for prefix, module in self.named_modules():
            for name, tensor in getattr(module, table).items():
                yield f"{prefix}.{name}" if prefix else name, tensor

    def named_parameters(self, remove_duplicate=True):
        return self._named("_parameters")

    def parameters(self):
        return [tensor for _, tensor in self.named_parameters()]

    def eval(self):
        return self

    def named_buffers(self, remove_duplicate=True):
        return self._named("_buffers")


class Linear(Module):
    def __init__(self, inputs, outputs, bias=True):
        super().__init__()
        random = np.random.default_rng(inputs * 1000 + outputs)
        self.weight = Parameter(Tensor(random.standard_normal((outputs, inputs), "float32")))
        if bias:
            self.bias = Parameter(Tensor(random.standard_normal(outputs, "float32")))
