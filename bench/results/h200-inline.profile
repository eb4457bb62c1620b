moonbright-profile 1
device NVIDIA H200
driver 580.159.04
tables device-inline
group_slots 16 # slots
# invalid_group_slots was not measured
walk_ahead_slots 0 # slots
entry_low 1665 # bits
entry_high 0 # bits
launch_ns 3032 # ns
kernel_ns 8078 # ns
submit_ns 3291 # ns
map_ns 9415 # ns
entry_ps 3222 # ps
invalidate_ns 4086 # ns
# invalidate_range_ns was not measured
first_touch_ns 409.04356060606062 # ns
stream_value_ns 3239.09375 # ns
slab_2m_ns 873541 # ns
slab_32m_ns 1333384 # ns
slab_128m_ns 1208889 # ns
slab_512m_ns 825582 # ns
slab_1g_ns 871458 # ns
slab_cliff_mib 0 # MiB
