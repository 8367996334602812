package hostcheck

// volumePrograms are what volumes are made with, and the Debian packages that have them.
var volumePrograms = []struct {
	name, packageName, purpose string
}{
	{"mkfs.ext4", "e2fsprogs", "volumes"},
	{"resize2fs", "e2fsprogs", "volumes of another size"},
	{"mkfs.xfs", "xfsprogs", "the pool of volumes, unless the state directory is on Btrfs or on XFS"},
}

// volumes reports on what a node needs to keep volumes.
func volumes(f Facts) []Finding {
	var all []Finding
	for _, p := range volumePrograms {
		found := Finding{Area: Volume, Name: p.name, Status: OK, Detail: p.purpose}
		if !f.Programs[p.name] {
			found.Status, found.Detail, found.Fix = Warning, p.name+" is not installed; it makes "+p.purpose, "apt-get install "+p.packageName
		}
		all = append(all, found)
	}
	return append(all, f.modules(Volume)...)
}

// lookAtVolumePrograms looks for the programs that volumes are made with.
func (h Host) lookAtVolumePrograms(f *Facts) {
	for _, p := range volumePrograms {
		f.Programs[p.name] = h.installed(p.name)
	}
}
