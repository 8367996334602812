package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// The name and UUID of the machine that virsh handles, its device, and its addresses: the node's end and the guest's.
const (
	twinName    = "bench-twin"
	twinUUID    = "00000000-0000-8000-8000-00000000be0c"
	twinTAP     = "vmtwin"
	twinNode    = "10.99.71.1/24"
	twinAddress = "10.99.71.2/24"
)

// twin is a machine like a member's, in the libvirtds of nodes, of which the site knows nothing. All of its files are in one directory.
type twin struct {
	dir string
	// nodes are those that it can be on, and at is the one where it is.
	nodes  []twinHost
	at     int
	client *guestlink.Client
}

// twinHost is a node's libvirtd.
type twinHost struct {
	libvirtd int
	space    netns.Handle
}

// makeTwin defines a machine on the first of these nodes by the description of member 0 there, and boots it until SSH answers.
func (v *virtual) makeTwin(ctx context.Context, nodes ...string) (_ *twin, err error) {
	t := &twin{dir: filepath.Join(v.work, "twin")}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.end(context.WithoutCancel(ctx)))
		}
	}()
	for _, node := range nodes {
		host, err := v.hostOf(node)
		if err != nil {
			return nil, err
		}
		t.nodes = append(t.nodes, host)
	}
	text, err := t.describe(ctx)
	if err != nil {
		return nil, err
	}
	for n := range t.nodes {
		if err := t.plugIn(ctx, n); err != nil {
			return nil, err
		}
	}
	if _, err := t.virsh(ctx, "create", filepath.Join(t.dir, "twin.xml")); err != nil {
		return nil, err
	}
	socket := filepath.Join(t.dir, "run", "guest.sock")
	t.client = guestlink.NewClient(func(ctx context.Context) (net.Conn, error) { return dialSocket(ctx, socket) })
	bound, cancel := context.WithTimeout(ctx, vmLimit)
	defer cancel()
	err = t.client.Setup(bound, guestlink.Setup{
		Hostname: "twin", Interfaces: []guestlink.Interface{{MAC: macOf(text), Name: "eth0", Address: netip.MustParsePrefix(twinAddress), MTU: 1500}},
		Files: v.hand.files, Program: v.hand.program, WatchdogSeconds: 60,
	})
	if err != nil {
		return nil, err
	}
	return t, t.hear(bound)
}

// hostOf finds a node's libvirtd.
func (v *virtual) hostOf(node string) (twinHost, error) {
	agent, err := v.agentOf(node)
	if err != nil {
		return twinHost{}, err
	}
	daemons := helpersOf(agent, nil)[kindLibvirt]
	if len(daemons) != 1 {
		return twinHost{}, fmt.Errorf("processes %v are libvirtd of node %s, want one", daemons, node)
	}
	space, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", daemons[0]))
	return twinHost{daemons[0], space}, err
}

// describe writes the machine's description, and copies the files that it names.
func (t *twin) describe(ctx context.Context) (string, error) {
	names, err := t.virsh(ctx, "list", "--name")
	if err != nil {
		return "", err
	}
	member := ""
	for name := range strings.FieldsSeq(names) {
		if strings.Contains(name, "."+clusterName+"-0.") {
			member = name
		}
	}
	if member == "" {
		return "", fmt.Errorf("libvirt's machines are %q, want one of member %s-0", names, clusterName)
	}
	text, err := t.virsh(ctx, "dumpxml", "--inactive", member)
	if err != nil {
		return "", err
	}
	uuid, device := between(text, "<uuid>", "</uuid>"), between(text, "<target dev='nm", "'")
	if uuid == "" || device == "" {
		return "", fmt.Errorf("libvirt's description of member %s has no UUID or no TAP device: %s", member, text)
	}
	view := "/run/vm/" + member
	for _, dir := range []string{"", "run", "link", "control"} {
		if err := os.MkdirAll(filepath.Join(t.dir, dir), 0o711); err != nil {
			return "", err
		}
	}
	if err := copyFiles(ctx, t.nodes[0].libvirtd, view, t.dir); err != nil {
		return "", err
	}
	text = strings.NewReplacer(view, t.dir, member, twinName, uuid, twinUUID, "nm"+device, twinTAP).Replace(text)
	return text, os.WriteFile(filepath.Join(t.dir, "twin.xml"), []byte(text), 0o600)
}

// copyFiles copies the regular files of a directory in a process's mount namespace.
func copyFiles(ctx context.Context, pid int, from, to string) error {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/root%s/*", pid, from))
	if err != nil {
		return err
	}
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
			continue
		}
		if out, err := exec.CommandContext(ctx, "cp", file, to).CombinedOutput(); err != nil {
			return fmt.Errorf("cp: %w: %s", err, out)
		}
	}
	return nil
}

// plugIn makes its device on a node. A lost ARP request is sent again after 10 ms instead of 1 s.
func (t *twin) plugIn(ctx context.Context, n int) error {
	script := fmt.Sprintf(`ip tuntap add %[1]s mode tap
ip address add %[2]s dev %[1]s
ip link set %[1]s up
echo 10 > /proc/sys/net/ipv4/neigh/%[1]s/retrans_time_ms`, twinTAP, twinNode)
	_, err := inside(ctx, t.nodes[n].space, "sh", "-ec", script)
	return err
}

func between(text, from, to string) string {
	_, rest, found := strings.Cut(text, from)
	if !found {
		return ""
	}
	word, _, _ := strings.Cut(rest, to)
	return word
}

func macOf(description string) string { return between(description, "<mac address='", "'") }

// virsh runs where the machine is.
func (t *twin) virsh(ctx context.Context, args ...string) (string, error) {
	return t.nodes[t.at].virsh(ctx, args...)
}

func (h twinHost) virsh(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "virsh", append([]string{"-q", "-c", h.uri()}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("virsh %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// uri leads to the node's libvirtd, in whichever mount namespace it is.
func (h twinHost) uri() string {
	return fmt.Sprintf("qemu+unix:///system?socket=/proc/%d/root/run/libvirt/libvirt-sock", h.libvirtd)
}

// hear returns once the guest's SSH server speaks.
func (t *twin) hear(ctx context.Context) error {
	address, _, _ := strings.Cut(twinAddress, "/")
	return t.nodes[t.at].space.Do(func() error { return awaitSSH(ctx, address+":22") })
}

// end removes the machine and what was made for it.
func (t *twin) end(ctx context.Context) (err error) {
	if t.client != nil {
		t.client.Close()
	}
	for _, host := range t.nodes {
		_, _ = host.virsh(ctx, "destroy", twinName)                     // it may not be there
		_, _ = inside(ctx, host.space, "ip", "link", "delete", twinTAP) // nor its device
		err = errors.Join(err, host.space.Close())
	}
	return errors.Join(err, os.RemoveAll(t.dir))
}
