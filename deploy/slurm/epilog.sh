#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Goes with prolog.sh (Epilog= in slurm.conf).
exec /usr/libexec/gpumem/gpumem-slurm epilog
