# SPDX-License-Identifier: MIT
"""JAX behind the preload. XLA_PYTHON_CLIENT_ALLOCATOR says by which calls it allocates: platform, cuda_async, default."""
import os
import sys

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

if jax.default_backend() != "gpu":
    print(f"SKIP: JAX has no GPU backend here ({jax.default_backend()})")
    sys.exit(77)


@jax.jit
def step(w, x):
    def loss(w):
        return jnp.mean((jnp.tanh(x @ w) - 1.0) ** 2)

    return w - 0.1 * jax.grad(loss)(w)


w = jax.random.normal(jax.random.PRNGKey(0), (1024, 1024)) * 0.01
x = jax.random.normal(jax.random.PRNGKey(1), (4096, 1024))
first = float(jnp.mean((jnp.tanh(x @ w) - 1.0) ** 2))
for _ in range(30):
    w = step(w, x)
last = float(jnp.mean((jnp.tanh(x @ w) - 1.0) ** 2))
y = jnp.sort(jnp.arange(1 << 22)[::-1])
assert bool((y == jnp.arange(1 << 22)).all()), "sort"
assert last < first, (first, last)
print(f"RESULT jax {jax.__version__}, {os.environ.get('XLA_PYTHON_CLIENT_ALLOCATOR', 'default')}: loss {first:.6f} -> {last:.6f}")
