moonbright-profile 1
device NVIDIA H200
driver 580.159.04
tables device-inline
group_slots 16 # slots
# invalid_group_slots was not measured
walk_ahead_slots 0 # slots
entry_low 1665 # bits
entry_high 0 # bits
small_alloc_leaf_kib 2048 # KiB
launch_ns 2202 # ns
kernel_ns 7311 # ns
submit_ns 2623 # ns
map_ns 8692 # ns
entry_ps 2514 # ps
invalidate_ns 4113 # ns
# invalidate_range_ns was not measured
first_touch_ns 354.92424242424244 # ns
stream_value_ns 3240.96875 # ns
slab_2m_ns 602578 # ns
slab_32m_ns 1263407 # ns
slab_128m_ns 1235980 # ns
slab_512m_ns 951814 # ns
slab_1g_ns 897872 # ns
slab_cliff_mib 0 # MiB
