import threading


class Hooks(dict):  # which can be referred to weakly
    pass


_thread_local = threading.local()
asked = 0  # how often it was looked for


def get_memory_hooks():
    """The thread's."""
    global asked
    asked += 1
    if not hasattr(_thread_local, "hooks"):
        _thread_local.hooks = Hooks()
    return _thread_local.hooks


class MemoryHook:
    name = "MemoryHook"

    def __enter__(self):
        get_memory_hooks()[self.name] = self
        return self

    def __exit__(self, *_):
        del get_memory_hooks()[self.name]
