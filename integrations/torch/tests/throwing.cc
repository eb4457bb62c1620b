/* SPDX-License-Identifier: MIT */
/* Functions of PyTorch's reset_fn type that throw out of the plug-in, so that the real PyTorch can be seen to
 * translate it: torch._C._cuda_emptyCache() calls them on a machine without a GPU. */
#include "moonbright_torch.h"

extern "C" {
MB_API void throwing_shortage(void);
MB_API void throwing_other(void);

void throwing_shortage(void)
{
    (void)mb_torch_malloc(static_cast<ssize_t>(1) << 50, 0, nullptr);
}

void throwing_other(void)
{
    (void)mb_torch_malloc(512, -1, nullptr);
}
}
