moonbright-profile 1
device NVIDIA H200
driver 580.159.04
tables device-isolated
group_slots 16 # slots
# invalid_group_slots was not measured
walk_ahead_slots 0 # slots
entry_low 1665 # bits
entry_high 0 # bits
small_alloc_leaf_kib 2048 # KiB
launch_ns 3002 # ns
kernel_ns 8049 # ns
submit_ns 4044 # ns
map_ns 14046 # ns
entry_ps 2469 # ps
invalidate_ns 3125 # ns
invalidate_range_ns 1318 # ns
first_touch_ns 420.32828282828291 # ns
stream_value_ns 3316.34375 # ns
slab_2m_ns 134341 # ns
slab_32m_ns 141829 # ns
slab_128m_ns 153178 # ns
slab_512m_ns 178458 # ns
slab_1g_ns 313690 # ns
slab_cliff_mib 0 # MiB
