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
launch_ns 2326 # ns
kernel_ns 7217 # ns
submit_ns 2443 # ns
map_ns 8434 # ns
entry_ps 1579 # ps
invalidate_ns 4310 # ns
# invalidate_range_ns was not measured
first_touch_ns 427.52525252525254 # ns
stream_value_ns 3177.46875 # ns
slab_2m_ns 116226 # ns
slab_32m_ns 121695 # ns
slab_128m_ns 123409 # ns
slab_512m_ns 132331 # ns
slab_1g_ns 212515 # ns
slab_cliff_mib 0 # MiB
