#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# For sites without the plug-in (Prolog= in slurm.conf, PrologFlags=Alloc): jobs ask for memory by
# --gres=gpumem:MIB.
exec /usr/libexec/gpumem/gpumem-slurm prolog
