package contextualization

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
)

// Slurm is a cluster's own Slurm: a partition for each group whose environment carries it, and one of all their members.
type Slurm struct {
	// MungeKey is the cluster's own (package mungekey).
	MungeKey []byte
	// Groups are those whose environment carries Slurm, in the cluster's order.
	Groups []SlurmGroup
	// Controller is the member that runs slurmctld. While it is lost it is not among the cluster's members.
	Controller string
}

// SlurmGroup is a group whose members are nodes of Slurm.
type SlurmGroup struct {
	Name string
	// Labels are those that the nodes of all its members carry.
	Labels map[string]string
}

// partitionOfAll is the default partition.
const partitionOfAll = "all"

// partition is the name of a group's partition. Slurm takes "default" for what holds of all partitions, and "all" is all members; no
// group's name has an underscore.
func (g SlurmGroup) partition() string {
	if g.Name == partitionOfAll || g.Name == "default" {
		return g.Name + "_group"
	}
	return g.Name
}

func (s *Slurm) check() error {
	switch {
	case len(s.MungeKey) == 0:
		return errors.New("its Slurm has no key for munge")
	case s.Controller == "":
		return errors.New("its Slurm has no controller")
	}
	return nil
}

// slurmFiles are there as a whole or not at all: a running member can't get a file where its environment shows a directory of its own.
func (r *Renderer) slurmFiles() []driver.File {
	return []driver.File{
		{Path: memberconfig.MungeKeyPath, Content: r.cluster.Slurm.MungeKey, Mode: 0o600},
		public("/etc/slurm/cgroup.conf", cgroupConf),
		public("/etc/slurm/gres.conf", r.gresConf()),
		public(memberconfig.SlurmPath, r.slurmConf()),
	}
}

// cgroupConf: a member's control groups are its node's. Slurm 22.05 knows no way to go without; this plugin asks for none until something uses it.
const cgroupConf = `# Generated. Members have no control groups of their own to divide.
CgroupPlugin=cgroup/v1
CgroupAutomount=no
ConstrainCores=no
ConstrainRAMSpace=no
`

// slurmNode is a member as Slurm knows it.
type slurmNode struct {
	api.Assignment
	group SlurmGroup
}

// slurmNodes are the members that Slurm has, by rank.
func (r *Renderer) slurmNodes() []slurmNode {
	var nodes []slurmNode
	for _, m := range r.members {
		i := slices.IndexFunc(r.cluster.Slurm.Groups, func(g SlurmGroup) bool { return g.Name == m.Group })
		if i >= 0 {
			nodes = append(nodes, slurmNode{m, r.cluster.Slurm.Groups[i]})
		}
	}
	return nodes
}

// memoryMiB is the member's memory, 1 at least, as Slurm wants.
func (n slurmNode) memoryMiB() int64 {
	var bytes int64
	for _, m := range n.Memory {
		bytes += m.Bytes
	}
	return max(bytes>>20, 1)
}

// sockets are the member's NUMA nodes where its cores can be divided evenly among them.
func (n slurmNode) sockets() int {
	if count := len(n.NUMANodes); count > 1 && len(n.Slots)%count == 0 {
		return count
	}
	return 1
}

func (n slurmNode) gpus() int64 {
	var count int64
	for _, d := range n.Devices {
		if d.Class == api.ClassGPU {
			count += d.Takes[api.CounterGPUs]
		}
	}
	return count
}

func (n slurmNode) line() string {
	features := []string{string(n.Stack)}
	for _, key := range slices.Sorted(maps.Keys(n.group.Labels)) {
		features = append(features, key+"="+n.group.Labels[key])
	}
	sockets := n.sockets()
	line := fmt.Sprintf("NodeName=%s NodeAddr=%s Sockets=%d CoresPerSocket=%d ThreadsPerCore=1 RealMemory=%d Feature=%s",
		n.Member, n.Address(), sockets, len(n.Slots)/sockets, n.memoryMiB(), strings.Join(features, ","))
	if count := n.gpus(); count > 0 {
		line += fmt.Sprintf(" Gres=gpu:%d", count)
	}
	return line
}

// gresConf names files that stand for the GPUs: which device files of its node a member has is known on the node only. Slurm's variables for
// jobs, such as CUDA_VISIBLE_DEVICES, have the files' numbers.
func (r *Renderer) gresConf() string {
	var b strings.Builder
	b.WriteString("# Generated.\n")
	for _, n := range r.slurmNodes() {
		if count := n.gpus(); count > 0 {
			fmt.Fprintf(&b, "NodeName=%s Name=gpu File=%s[0-%d]\n", n.Member, memberconfig.SlurmGPUs, count-1)
		}
	}
	return b.String()
}

// slurmConf is slurm.conf (slurm.conf(5), of Slurm 22.05). It is the same in all members, and changes with them: member agents
// read the controller and the nodes from it.
func (r *Renderer) slurmConf() string {
	nodes := r.slurmNodes()
	host, memoryOfCPU, gres := r.cluster.Slurm.Controller, int64(0), ""
	for i, n := range nodes {
		if n.Member == host {
			host = fmt.Sprintf("%s(%s)", host, n.Address())
		}
		share := max(n.memoryMiB()/int64(len(n.Slots)), 1)
		if i == 0 || share < memoryOfCPU {
			memoryOfCPU = share
		}
		if n.gpus() > 0 {
			gres = "GresTypes=gpu\n"
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, slurmSettings, r.cluster.Name, host, memberconfig.SlurmState, max(memoryOfCPU, 1), gres)
	members := map[string][]string{}
	for _, n := range nodes {
		b.WriteString(n.line() + "\n")
		members[n.group.partition()] = append(members[n.group.partition()], n.Member)
		members[partitionOfAll] = append(members[partitionOfAll], n.Member)
	}
	// A partition stays while it has no members: Slurm would end the jobs that wait in it.
	for _, g := range r.cluster.Slurm.Groups {
		b.WriteString(partitionLine(g.partition(), members[g.partition()]) + "\n")
	}
	b.WriteString(partitionLine(partitionOfAll, members[partitionOfAll]) + " Default=YES\n")
	return b.String()
}

func partitionLine(name string, members []string) string {
	return fmt.Sprintf("PartitionName=%s MaxTime=INFINITE State=UP Nodes=%s", name, cmp.Or(strings.Join(members, ","), `""`))
}

// slurmSettings: the daemons listen at the members' addresses on the cluster's own network, not on networks that others have joined. Slurm's root
// is that of the members, whom nobody logs in as. Nothing is bound to cores, since a member has its own. What a node says of its hardware
// is its host's, so what is written here holds.
const slurmSettings = `# Generated from the cluster's groups and members. Rewritten when they change.
ClusterName=%s
SlurmctldHost=%s
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=%s
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmdParameters=config_overrides
ReturnToService=2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=pmix
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=%d
MailProg=/bin/true
SlurmctldDebug=error
SlurmdDebug=error
%s`
