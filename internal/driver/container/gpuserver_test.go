package container

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/gpu"
)

func aGPUServer() driver.Member {
	return driver.Member{
		Assignment: api.Assignment{
			ID: "u1.c-0.1-d0", Of: "u1.c-0.1", ClusterUID: "u1", Member: "c-0", UserIDs: api.IDRange{First: 1_065_536, Count: 65536},
			Ports:   []api.PortClaim{{Address: netip.MustParseAddr("10.64.16.4")}},
			Devices: []api.DeviceClaim{{Class: "gpu", Device: "opencl0", Way: "remote", Takes: map[string]int64{"remote-mib": 256}}},
		},
		ControlDir: "/state/control/s", User: driver.User{Name: "hpc", UID: 1000, GID: 1000},
	}
}

// bindOf is the mount of a member at a path.
func bindOf(t *testing.T, m driver.Member, path string) *specs.Mount {
	t.Helper()
	spec, err := renderSpec(specInput{member: m, memberBinary: "/state/member", args: []string{MemberPath}})
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == path }); i >= 0 {
		return &spec.Mounts[i]
	}
	return nil
}

func TestAServerIsAContainerOfItsClusterWithTheMembersPart(t *testing.T) {
	d := &Driver{cfg: Config{ServerCPUs: []int{3}, ServerMemory: []int{0, 1}}}
	m, err := d.asContainer(aGPUServer())
	if err != nil {
		t.Fatal(err)
	}
	if err := checkMember(m); err != nil {
		t.Fatal(err)
	}
	spec, err := renderSpec(specInput{member: m, args: []string{MemberPath}})
	if err != nil {
		t.Fatal(err)
	}
	const want = "/run/nearmetal-gpu/server --supervise --listen tcp:10.64.16.4:7070 --listen unix:/run/nearmetal-gpu/socket/server --memory-mib 256 --memory-together --counts /run/nearmetal-gpu/socket/counts --tls /etc/nearmetal/tls --member nearmetal://workload/u1/u1.c-0.1"
	if got := strings.Join(spec.Process.Args, " "); got != want {
		t.Errorf("its first process is\n%s, want\n%s", got, want)
	}
	r := spec.Linux.Resources
	if r.CPU.Cpus != "3" || r.CPU.Mems != "0,1" || *r.Memory.Limit != 1<<30+256<<20 || spec.Linux.UIDMappings[0].HostID != 1_065_536 || len(spec.Linux.Namespaces) != 7 {
		t.Errorf("it has CPUs %s, memory nodes %s, %d bytes, users from %d, %d namespaces", r.CPU.Cpus, r.CPU.Mems, *r.Memory.Limit, spec.Linux.UIDMappings[0].HostID, len(spec.Linux.Namespaces))
	}
	for _, path := range []string{"/run/nearmetal", MemberPath} {
		if bindOf(t, m, path) != nil {
			t.Errorf("a server has %s, which is for members", path)
		}
	}
	if b := bindOf(t, m, gpuSocketDir); b == nil || b.Source != "/state/control/s/gpu" || slices.Contains(b.Options, "ro") {
		t.Errorf("the directory of its socket is %+v", b)
	}
}

func TestAMemberReachesTheSocketOfItsOwnServerOnly(t *testing.T) {
	member := driver.Member{Assignment: api.Assignment{ID: "u1.c-0.1", CPUs: []int{0}}, ControlDir: "/state/control/m", GPUServer: &driver.GPUServer{ID: "u1.c-0.1-d0", Node: "n2"}}
	if b := bindOf(t, member, gpuSocketDir); b != nil {
		t.Errorf("the server is on another node, and the member has %+v", b)
	}
	member.GPUServer.ControlDir = "/state/control/s"
	if b := bindOf(t, member, gpuSocketDir); b == nil || b.Source != "/state/control/s/gpu" || !slices.Contains(b.Options, "ro") {
		t.Errorf("the member has %+v", b)
	}
}

// someGPUs says what was asked of it.
type someGPUs struct{ asked string }

func (g *someGPUs) Edits(context.Context, []api.DeviceClaim) (*gpu.Edits, error) {
	g.asked += "edits "
	return nil, nil
}

func (g *someGPUs) Served(context.Context, []api.DeviceClaim) (*gpu.Edits, error) {
	g.asked += "served "
	return nil, nil
}

func (g *someGPUs) FrontEnds() (*gpu.Edits, error) {
	g.asked += "front ends "
	return nil, nil
}

func TestAMemberOfAServerHasFrontEndsAndNoDevice(t *testing.T) {
	server := aGPUServer()
	for want, m := range map[string]*driver.Member{
		"served ":     &server,
		"front ends ": {GPUServer: &driver.GPUServer{ID: "s"}},
		"edits ":      {Assignment: api.Assignment{Devices: []api.DeviceClaim{{Class: "gpu", Way: "whole"}}}},
		"":            {},
	} {
		g := &someGPUs{}
		d := &Driver{cfg: Config{GPUs: g}}
		if _, err := d.gpusOf(t.Context(), m); err != nil || g.asked != want {
			t.Errorf("asked for %q (%v), want %q", g.asked, err, want)
		}
	}
}

func TestOtherPartsOfMembersAreNoContainers(t *testing.T) {
	m := aGPUServer()
	m.Assignment.Devices[0].Way = "whole"
	if err := checkMember(m); err == nil || !strings.Contains(err.Error(), "containers hold nothing on other nodes") {
		t.Errorf("got %v", err)
	}
	if _, err := (&Driver{}).asContainer(aGPUServer()); err == nil {
		t.Error("a node without CPUs for servers runs one")
	}
}
