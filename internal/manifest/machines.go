package manifest

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cpumodel"
	"github.com/nearmetal/nearmetal/internal/userdata"
)

// cpuModel checks the CPU model of a group, and returns it in its normal form: nothing for the node's own.
func (n *normalizer) cpuModel(path string, g api.Group) string {
	switch {
	case g.CPUModel == "" && !n.src.Has(path):
	case g.Stack != api.StackVM:
		n.add(path, g.CPUModel, "members on the stack %q have their node's own processor; omit it, or use the stack %q", g.Stack, api.StackVM)
	case g.CPUModel == cpumodel.Host:
		return ""
	case !cpumodel.Known(g.CPUModel):
		hint := fmt.Sprintf("use %q, or a model such as \"Haswell\" or \"EPYC-Rome\"; 'nearmetal node show NODE' lists those of a node", cpumodel.Host)
		if near := Closest(g.CPUModel, cpumodel.Names()); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		n.add(path, g.CPUModel, "%q is not a CPU model; %s", g.CPUModel, hint)
	}
	return g.CPUModel
}

// MaxDisk is the largest private disk: what a table of clusters of one cluster names.
const MaxDisk = api.Bytes(4 << 40)

// diskSector is what a disk consists of.
const diskSector = 512

// disk checks the size of the private disks of a group's members. Only the server knows whether their environment has a disk, and its size.
func (n *normalizer) disk(path string, g api.Group) {
	switch d := g.Disk; {
	case d == 0 && !n.src.Has(path):
	case g.Stack != api.StackVM:
		n.add(path, d.String(), "members on the stack %q have no disk of their own; omit it, or use the stack %q", g.Stack, api.StackVM)
	case d < 1<<20:
		n.add(path, d.String(), "%s is too small; give at least the size of the environment's disk", d)
	case d > MaxDisk:
		n.add(path, d.String(), "%s is too large; the limit is %s", d, MaxDisk)
	case d%diskSector != 0:
		n.add(path, d.String(), "%d bytes are not a whole number of sectors of %d bytes", int64(d), diskSector)
	}
}

// The sizes of huge pages that processors of the supported architecture have.
const (
	HugePages2MiB = api.Bytes(2 << 20)
	HugePages1GiB = api.Bytes(1 << 30)
)

// hugePages checks the huge pages of a group.
func (n *normalizer) hugePages(path string, g api.Group) {
	at, size := join(path, "huge_pages"), g.HugePages
	switch {
	case size == 0 && !n.src.Has(at):
	case g.Stack != api.StackVM:
		n.add(at, size.String(), "members on the stack %q can't be given huge pages; omit it, or use the stack %q", g.Stack, api.StackVM)
	case size != HugePages2MiB && size != HugePages1GiB:
		n.add(at, size.String(), "%s is not a size of huge pages; use %s or %s", size, HugePages2MiB, HugePages1GiB)
	case g.Memory%size != 0:
		n.add(join(path, "memory"), g.Memory.String(), "%s is not a whole number of huge pages of %s", g.Memory, size)
	}
}

const (
	// MaxUserData bounds the user data of a group, in bytes, as clouds do: each of its members gets it.
	MaxUserData = 16 << 10
	// maxAllUserData bounds that of all groups of a cluster, which is stored with it.
	maxAllUserData = 64 << 10
)

// userData checks what a group gives cloud-init.
func (n *normalizer) userData(path string, g api.Group) {
	switch {
	case g.UserData == "" && !n.src.Has(path):
	case g.Stack != api.StackVM:
		n.add(path, "", "is for cloud-init, which members on the stack %q do not have; omit it, or use the stack %q with an imported environment", g.Stack, api.StackVM)
	case g.UserData == "":
		n.add(path, "", "is empty; omit it")
	case len(g.UserData) > MaxUserData:
		n.add(path, "", "is %d bytes long; at most %d are possible: let it fetch what is longer", len(g.UserData), MaxUserData)
	default:
		if err := userdata.Check(g.UserData); err != nil {
			n.add(path, "", "%v", err)
		}
	}
}

// allUserData bounds the user data of all groups together.
func (n *normalizer) allUserData(groups []api.Group) {
	sum := 0
	for i := range groups {
		sum += min(len(groups[i].UserData), MaxUserData)
	}
	if sum > maxAllUserData {
		n.add("groups", "", "hold %d bytes of user data; at most %d are possible in a cluster", sum, maxAllUserData)
	}
}
