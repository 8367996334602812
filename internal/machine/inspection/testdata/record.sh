#!/bin/bash
# Record what inspection reads of the machine this runs on, as a tree in the form that the tests unpack: "== PATH" and the file's lines,
# "== PATH hex" and its bytes in hexadecimal, "== PATH -> TARGET" for a symbolic link. Needs root; writes to the standard output.
shopt -s nullglob
text() { for f; do [ -f "$f" ] && content=$(tr -d '\0' <"$f" 2>/dev/null) && printf '== %s\n%s\n' "${f#/}" "$content"; done; }
binary() { for f; do [ -f "$f" ] && printf '== %s hex\n%s\n' "${f#/}" "$(od -An -v -tx1 "$f" | tr -d ' ')"; done; }
link() { for f; do [ -L "$f" ] && printf '== %s -> %s\n' "${f#/}" "$(readlink "$f")"; done; }
# device records the attributes of a device and of all it hangs on.
declare -A seen
device() {
	local d
	d=$(readlink -f "$1") || return
	while [ "$d" != /sys/devices ] && [ "$d" != / ] && [ -z "${seen[$d]}" ]; do
		seen[$d]=1
		text "$d"/{class,vendor,device,numa_node,sriov_totalvfs,max_link_width,current_link_width,max_link_speed,current_link_speed,aer_dev_fatal}
		[ -f "$d/config" ] && printf '== %s/config hex\n%s\n' "${d#/}" "$(od -An -v -N64 -tx1 "$d/config" | tr -d ' ')"
		link "$d"/{driver,subsystem,physfn,iommu_group}
		d=${d%/*}
	done
}
text /proc/{cpuinfo,cmdline,interrupts} /proc/sys/kernel/{osrelease,arch}
grep MemTotal /proc/meminfo | sed '1i== proc/meminfo'
binary /sys/firmware/dmi/tables/DMI /sys/firmware/efi/efivars/SecureBoot-*
text /sys/firmware/efi/fw_platform_size
text /sys/devices/system/cpu/{online,present,smt/control}
for d in /sys/devices/system/cpu/cpu[0-9]*; do text "$d"/topology/{physical_package_id,core_id,die_id} "$d"/thermal_throttle/*_throttle_total_time_ms; done
for d in /sys/devices/system/node/node[0-9]*; do text "$d/cpulist"; grep MemTotal "$d/meminfo" | sed "1i== ${d#/}/meminfo"; done
text /sys/devices/system/clocksource/clocksource0/{available,current}_clocksource
text /sys/devices/system/edac/mc/mc*/{ce_count,ue_count}
for d in /sys/bus/pci/devices/*; do link "$d"; device "$d"; done
link /sys/bus/pci/drivers/*/module
link /sys/kernel/iommu_groups/*/devices/*
for d in /sys/class/net/*; do
	link "$d" "$d/device"; text "$d"/{address,type,speed,duplex,carrier,operstate,ifindex}
	[ -e "$d/device" ] && device "$d/device"
done
for d in /sys/block/*; do
	link "$d" "$d/device"; text "$d"/{size,serial,removable,hidden,queue/rotational}
	link "$d"/device/nvme[0-9]*
	[ -e "$d/device" ] && { device "$d/device"; text "$d"/device/{model,serial,type,transport}; binary "$d/device/vpd_pg80"; }
done
for d in /sys/class/infiniband/*; do
	link "$d" "$d/device"; text "$d"/{node_guid,fw_ver,hca_type,board_id} "$d"/ports/*/{state,phys_state,rate,link_layer}; device "$d/device"
done
for d in /sys/class/hwmon/hwmon*; do link "$d"; text "$d"/{name,temp*_{input,crit,max,label}}; done
for d in /sys/class/thermal/thermal_zone*; do link "$d"; text "$d"/{type,temp,trip_point_*_{type,temp}}; done
