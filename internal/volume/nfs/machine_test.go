package nfs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/nfsd/nfsdtest"
)

// vlan is the network of a cluster with whole machines: a bridge in a namespace of its own. It plays a node's executor of networks, too.
type vlan struct {
	t      *testing.T
	bridge netns.Handle
	ends   int
	calls  []string
}

func newVLAN(t *testing.T) *vlan {
	v := &vlan{t: t, bridge: nfsdtest.Space(t)}
	nfsdtest.Run(t, v.bridge, "ip link add name vlan type bridge && ip link set vlan up")
	return v
}

// join gives a namespace an interface on the network.
func (v *vlan) join(space netns.Handle, name, address string) {
	v.t.Helper()
	v.ends++
	end := fmt.Sprintf("v%d", v.ends)
	nfsdtest.Run(v.t, v.bridge, fmt.Sprintf("ip link add %s type veth peer name %s netns /proc/%d/fd/%d && ip link set %s master vlan up", end, name, os.Getpid(), space.FD(), end))
	nfsdtest.Run(v.t, space, fmt.Sprintf("ip addr add %s/24 dev %s && ip link set %s up && ip link set lo up", address, name, name))
}

// Attach implements fabric.Attacher.
func (v *vlan) Attach(_ context.Context, port fabric.Port, place fabric.Place) error {
	v.calls = append(v.calls, fmt.Sprintf("attach %s %v %s %s", port.ID, port.Address, port.MAC, port.Interface))
	if slices.Contains(v.calls[:len(v.calls)-1], v.calls[len(v.calls)-1]) {
		return nil
	}
	space, err := netns.Open(place.At)
	if err != nil {
		return err
	}
	v.join(space, port.Interface, port.Address.String())
	return space.Close()
}

// Detach implements fabric.Attacher.
func (v *vlan) Detach(_ context.Context, id string) error {
	v.calls = append(v.calls, "detach "+id)
	return nil
}

func TestANodeHasAPortOnTheNetworkOfWholeMachines(t *testing.T) {
	s := newSite(t)
	n, v := s.node(t), newVLAN(t)
	want := volume.Sharing{ClusterUID: "c", UserIDs: nfsdtest.Users, Port: &volume.Port{ID: "c.volumes", Network: 7, Address: machineServer, MAC: "02:6e:00:07:00:09"}}
	if err := n.attach(t.Context(), want); err == nil || !strings.Contains(err.Error(), "its agent makes none") {
		t.Errorf("without an executor: %v", err)
	}
	n.cfg.Attacher = v
	n.apply(t, want)
	want.Port = nil
	n.apply(t, want)
	if err := n.End(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	calls := slices.Compact(v.calls)
	if want := []string{"attach c.volumes 10.64.0.9 02:6e:00:07:00:09 nfs1", "detach c.volumes"}; !slices.Equal(calls, want) {
		t.Errorf("the executor was asked for %q, want %q", calls, want)
	}
}

var machineServer = netip.MustParseAddr("10.64.0.9")

func TestAWholeMachineHasAVolumeUntilItIsShutOut(t *testing.T) {
	needs.Request(t, "NEARMETAL_NFS", "make test-volume-guest, whose guest has a kernel with an NFS server and client")
	s := newSite(t)
	server, v := s.node(t), newVLAN(t)
	server.cfg.Attacher = v
	disk := server.disk(t, "data", 64)
	if d := server.Describe(t.Context()); !d.Machines {
		t.Errorf("the node serves no machines: %+v", d)
	}
	space, own, other := nfsdtest.Space(t), netip.MustParseAddr("10.64.0.2"), netip.MustParseAddr("10.64.0.3")
	v.join(space, "eth1", own.String())
	want := volume.Sharing{
		Port: &volume.Port{ID: "c.volumes", Network: 7, Address: machineServer, MAC: "02:6e:00:07:00:09"}, Machines: []netip.Addr{own},
		Serves: []volume.Share{{UID: "data"}}, Rates: []volume.PeerRate{{Peer: own, BytesPerSecond: 64 << 20}},
	}
	server.apply(t, want)
	if got := server.found(t); !slices.Equal(got.Serves, []string{"data"}) || !slices.Equal(got.Clients, []netip.Addr{own}) {
		t.Errorf("the server has %+v, want client %v", got, own)
	}
	m := NewMachine(filepath.Join(s.dir, "machine"))
	reach := func(remotes ...volume.Remote) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		return space.Do(func() error { return m.Apply(ctx, volume.Sharing{ClusterUID: "c", Reaches: remotes}) })
	}
	for range 2 {
		if err := reach(volume.Remote{UID: "data", Server: machineServer}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := m.Observe(t.Context()); err != nil || len(got) != 1 || !slices.Equal(got[0].Reaches, []string{"data"}) {
		t.Errorf("the machine has %+v, %v", got, err)
	}
	as := func(uid uint32, script string) string {
		cmd := exec.Command("/bin/sh", "-c", "cd "+m.Dir("data", "c")+" && "+script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if out := as(1000, "echo one >file && sync file && stat -c %u file"); out != "1000\n" {
		t.Errorf("a user wrote a file: %q", out)
	}
	if text, err := os.ReadFile(filepath.Join(disk, "file")); err != nil || string(text) != "one\n" {
		t.Errorf("the disk has %q, %v", text, err)
	}
	// The machine is cut off, and another has its place. What the machine sends afterwards is refused.
	nfsdtest.Run(t, space, "ip link set eth1 down")
	want.Machines, want.Rates = []netip.Addr{other}, nil
	server.apply(t, want)
	if got := server.found(t); !slices.Equal(got.Clients, want.Machines) {
		t.Errorf("after a machine was shut out, these are let in: %v", got.Clients)
	}
	nfsdtest.Run(t, space, "ip link set eth1 up")
	if out := as(1000, "timeout -s KILL 5 sh -c 'echo two >>file; sync file' || echo refused"); !strings.Contains(out, "refused") {
		t.Errorf("a machine that was shut out wrote: %q", out)
	}
	if text, err := os.ReadFile(filepath.Join(disk, "file")); err != nil || string(text) != "one\n" {
		t.Errorf("the disk has %q, %v", text, err)
	}
	if err := reach(); err != nil {
		t.Error(err)
	}
	if err := errors.Join(m.End(t.Context(), "c"), server.End(t.Context(), "c")); err != nil {
		t.Fatal(err)
	}
	if left, err := m.Observe(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("after the end the machine has %+v, %v", left, err)
	}
	nfsdtest.Unmount(t, disk)
}
