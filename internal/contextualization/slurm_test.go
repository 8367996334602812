package contextualization

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
)

// slurmCluster gives the groups c1 and gpu Slurm, and the group all, which comes without members.
func slurmCluster(c *Cluster) {
	for i := range c.Members {
		m := &c.Members[i]
		m.Group, _, _ = strings.Cut(m.Member, "-")
		m.NUMANodes, m.Memory = []int{0}, []api.MemoryClaim{{Bytes: 512 << 20}}
		if m.Group == "gpu" {
			m.Devices = []api.DeviceClaim{
				{Class: api.ClassGPU, Takes: map[string]int64{api.CounterGPUs: 1, api.CounterSlices: 7}},
				{Class: api.ClassGPU, Takes: map[string]int64{api.CounterGPUs: 1}},
				{Class: "adapter", Takes: map[string]int64{"functions": 1}},
			}
			m.Memory = []api.MemoryClaim{{Bytes: 100 << 20}, {NUMANode: 1, Bytes: 200 << 20}}
		}
		if m.Member == "c1-1" {
			m.NUMANodes = []int{0, 1}
		}
	}
	c.Slurm = &Slurm{
		MungeKey: bytes.Repeat([]byte("9"), 128), Controller: "c1-0",
		Groups: []SlurmGroup{{Name: "c1"}, {Name: "gpu", Labels: map[string]string{"rack": "r1", "disk": "nvme"}}, {Name: "all"}},
	}
}

// content is that of a member's file.
func content(t *testing.T, files []driver.File, path string) string {
	t.Helper()
	i := slices.IndexFunc(files, func(f driver.File) bool { return f.Path == path })
	if i < 0 {
		t.Fatalf("there is no %s", path)
	}
	return string(files[i].Content)
}

func TestMembersWithoutSlurmAreNoNodes(t *testing.T) {
	cluster := testCluster(t, func(c *Cluster) {
		slurmCluster(c)
		c.Slurm.Groups = c.Slurm.Groups[:1]
	})
	conf := content(t, render(t, cluster, "u1.c1-0.1"), memberconfig.SlurmPath)
	if strings.Contains(conf, "gpu") || !strings.Contains(conf, "PartitionName=all MaxTime=INFINITE State=UP Nodes=c1-0,c1-1 Default=YES\n") {
		t.Errorf("a group without Slurm shows in\n%s", conf)
	}
}

func TestAMemberThatIsGoneIsNoNode(t *testing.T) {
	cluster := testCluster(t, func(c *Cluster) {
		slurmCluster(c)
		c.Members = slices.DeleteFunc(c.Members, func(m api.Assignment) bool { return m.Member == "c1-1" })
	})
	if conf := content(t, render(t, cluster, "u1.c1-0.1"), memberconfig.SlurmPath); strings.Contains(conf, "c1-1") {
		t.Errorf("a member that is gone is in\n%s", conf)
	}
}

func TestWhileTheControllerIsLostItHasNoAddress(t *testing.T) {
	cluster := testCluster(t, func(c *Cluster) {
		slurmCluster(c)
		c.Members = slices.DeleteFunc(c.Members, func(m api.Assignment) bool { return m.Member == "c1-0" })
	})
	if conf := content(t, render(t, cluster, "u1.c1-1.1"), memberconfig.SlurmPath); !strings.Contains(conf, "SlurmctldHost=c1-0\n") {
		t.Errorf("the lost controller is not there, or has an address, in\n%s", conf)
	}
}

func TestTheKeyOfMungeIsForRootAlone(t *testing.T) {
	files := render(t, testCluster(t, slurmCluster), "u1.c1-1.1")
	for _, f := range files {
		if bytes.Contains(f.Content, bytes.Repeat([]byte("9"), 128)) && (f.Mode != 0o600 || f.OwnedByUser) {
			t.Errorf("%s has mode %o, of the user: %v", f.Path, f.Mode, f.OwnedByUser)
		}
	}
	if got := content(t, files, memberconfig.MungeKeyPath); got != strings.Repeat("9", 128) {
		t.Errorf("the key is %q", got)
	}
}

func TestASlurmWithoutAKeyIsRefused(t *testing.T) {
	for name, change := range map[string]func(*Slurm){
		"no key":        func(s *Slurm) { s.MungeKey = nil },
		"no controller": func(s *Slurm) { s.Controller = "" },
	} {
		cluster := testCluster(t, func(c *Cluster) { slurmCluster(c); change(c.Slurm) })
		if _, err := New(cluster); err == nil {
			t.Errorf("%s: it is rendered", name)
		}
	}
}
