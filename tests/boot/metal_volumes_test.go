package boot

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/guest"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// withMachine is a cluster of a container and a whole machine with the home of its user and a volume.
const withMachine = `
name: mix
home: {kind: user}
volumes:
- name: data
groups:
- {name: c, size: 1, stack: container, cores: 1, memory: 128MiB, environment: debian-mpi, node_selector: {keeps: volumes}}
- {name: w, size: 1, stack: metal, environment: debian-mpi}
`

// joinServer makes an emulated Debian server a node of the site that keeps volumes: it was installed by hand, has a trunk of all VLANs, and joins by a token.
func (s *site) joinServer(name string) {
	s.t.Helper()
	image, err := guest.EnsureImage(s.t.Context(), guest.CacheDir, append(guest.NodePackages(), "erofs-utils", "squashfs-tools"))
	must(s.t, err)
	provisioning, data, err := s.dc.Plug(s.t.Context(), name)
	must(s.t, err)
	share := s.t.TempDir()
	s.run("node", "enroll-token", "create", "--prefix", name, "--uses", "1", "--approve", "--out", filepath.Join(share, "token"))
	_, port, err := net.SplitHostPort(s.listen)
	must(s.t, err)
	host := s.address.Addr().As4()
	host[3] = 250
	own := fmt.Sprintf("%d.%d.%d.%d", host[0], host[1], host[2], host[3])
	script := strings.Join([]string{
		"ip link set eth0 up", "ip addr add " + own + "/24 dev eth0", "ip link set eth1 up",
		"exec " + s.program + " agent --server " + net.JoinHostPort(s.address.Addr().String(), port) + " --enroll-token-file " + filepath.Join(share, "token") +
			" --name " + name + " --underlay " + own + " --trunk-interface eth1 --state /var/lib/nearmetal --label keeps=volumes --volume-pool-size 512MiB",
	}, "\n")
	log, err := os.Create(filepath.Join(s.t.TempDir(), name+".log"))
	must(s.t, err)
	m, err := guest.Start(context.WithoutCancel(s.t.Context()), guest.Config{
		Image: image, CPUs: 2, MemoryMiB: 1536, Shares: []string{share, filepath.Dir(s.program)}, Output: log, Command: []string{"/bin/sh", "-ec", script},
		Modules: []string{"virtio_net", "nfsd", "nfsv4", "loop", "xfs", "vxlan", "8021q", "bridge", "veth", "sch_htb", "cls_u32"},
		Links:   []guest.Link{guest.TAPLink("52:54:00:fe:00:01", provisioning), guest.TAPLink("52:54:00:fe:00:02", data)},
	})
	must(s.t, err)
	s.t.Cleanup(func() {
		m.Cut()
		_, err := m.Wait()
		if text, _ := os.ReadFile(log.Name()); s.t.Failed() {
			s.t.Logf("server %s (%v) said:\n%s", name, err, tail(string(text), 60))
		}
		_ = log.Close()
	})
	s.until(5*time.Minute, "node "+name+" to be ready with a trunk", func() bool {
		out, err := s.try("node", "show", name, "-o", "json")
		return err == nil && strings.Contains(out, `"machines": true`)
	})
}

// The home of a user and a volume reach whole machines over the VLAN of their cluster, and outlive it: the next cluster finds what the first one wrote.
func TestWholeMachinesHaveTheHomeOfTheirUserAndVolumes(t *testing.T) {
	names := []string{"b1", "b2"}
	var machines []vdc.MachineConfig
	for _, name := range names {
		machines = append(machines, vdc.MachineConfig{Name: name, Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB, CPUs: 1, DiskBytes: []int64{}})
	}
	s := newSwitchedSite(t, machines, names, "--volume-pool-size", "off")
	s.joinServer("store")
	for _, name := range names {
		s.enrollInspected(name, api.PowerRedfish, s.onSwitch(name)...)
	}
	s.awaitInspected(names...)
	s.run("volume", "create", "data", "--size", "64MiB")
	s.run("cluster", "create", "v1", "--stack", "metal", "--size", "2", "--env", "debian-mpi", "--home", "user:128MiB", "--volume", "data", "--timeout", "15m")
	said := s.in("v1", "v1-0", "echo from v1-0 >~/note && hostname >/volumes/data/one && stat -c '%U %u %n' ~/note /volumes/data/one && findmnt -no FSTYPE /home")
	if want := "hpc 1000 /home/hpc/note\nhpc 1000 /volumes/data/one\nnfs4\n"; said != want {
		t.Errorf("v1-0 says %q, want %q", said, want)
	}
	if said := s.in("v1", "v1-1", "cat ~/note /volumes/data/one; hostname >>/volumes/data/one"); said != "from v1-0\nv1-0\n" {
		t.Errorf("v1-1 reads %q", said)
	}
	s.refused("v1", "volume", "delete", "data", "--now", "--yes")
	s.run("cluster", "delete", "v1", "--yes")
	for _, name := range names {
		s.waitFor(name, api.MachineOff, 5*time.Minute)
	}
	s.run("cluster", "create", "v2", "--stack", "metal", "--env", "debian-mpi", "--home", "user", "--volume", "data:/data:ro", "--timeout", "15m")
	if said := s.in("v2", "v2-0", "cat ~/note /data/one; touch /data/two 2>&1 || true"); !strings.HasPrefix(said, "from v1-0\nv1-0\nv1-1\n") || !strings.Contains(said, "Read-only file system") {
		t.Errorf("the next cluster reads %q, want what the first wrote, and no way to write", said)
	}
	s.run("cluster", "delete", "v2", "--yes")
	for _, name := range names {
		s.waitFor(name, api.MachineOff, 5*time.Minute)
	}

	// A container beside the volume and a whole machine have both at one path.
	file := filepath.Join(t.TempDir(), "mix.yaml")
	must(t, os.WriteFile(file, []byte(withMachine), 0o600))
	s.run("cluster", "create", "-f", file, "--timeout", "15m")
	for _, step := range []struct{ member, line, want string }{
		{"c-0", "cat ~/note; stat -c %u ~/note /volumes/data/one; hostname >>~/note; hostname >/volumes/data/three", "from v1-0\n1000\n1000\n"},
		{"w-0", "cat ~/note /volumes/data/three; stat -c %u /volumes/data/three; hostname >>/volumes/data/three", "from v1-0\nc-0\nc-0\n1000\n"},
		{"c-0", "cat /volumes/data/three", "c-0\nw-0\n"},
	} {
		if said := s.in("mix", step.member, step.line); said != step.want {
			t.Errorf("%s: %q prints %q, want %q", step.member, step.line, said, step.want)
		}
	}
	s.run("cluster", "delete", "mix", "--yes")
	for _, name := range names {
		s.waitFor(name, api.MachineOff, 5*time.Minute)
	}
	s.run("volume", "delete", "data", "--now", "--yes")
}
