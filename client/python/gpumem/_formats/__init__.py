# SPDX-License-Identifier: Apache-2.0
"""Files of weights: which there are, and how their arrays go into memory."""
