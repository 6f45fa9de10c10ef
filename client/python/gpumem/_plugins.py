# SPDX-License-Identifier: Apache-2.0
"""Entry points of the package, which vLLM and SGLang call in each of their processes. They leave an
engine alone that is too old for the plug-in."""
import logging


def vllm() -> None:
    """Registers gpumem.vllm."""
    try:
        from . import vllm as plugin
    except ImportError as error:
        logging.getLogger("vllm.plugins.gpumem").warning(
            "no --load-format gpumem: it needs vLLM 0.32 or a later one like it (%s)", error)
    else:
        plugin.register()


def sglang() -> None:
    """Registers gpumem.sglang."""
    try:
        from . import sglang as plugin
    except ImportError as error:
        logging.getLogger("sglang.srt.gpumem").warning(
            "\"gpumem\" has no effect in --model-loader-extra-config: it needs SGLang 0.5.23 or a "
            "later one like it (%s)", error)
    else:
        plugin.register()
