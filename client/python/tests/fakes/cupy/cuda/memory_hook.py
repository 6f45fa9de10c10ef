_hooks = {}


def _has_memory_hooks():
    return bool(_hooks)


def get_memory_hooks():
    return _hooks


class MemoryHook:
    name = "MemoryHook"

    def __enter__(self):
        _hooks[self.name] = self
        return self

    def __exit__(self, *_):
        del _hooks[self.name]
