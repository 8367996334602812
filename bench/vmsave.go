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
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// The name and UUID of the machine that virsh saves, and its device.
const (
	twinName = "bench-twin"
	twinUUID = "00000000-0000-8000-8000-00000000be0c"
	twinTAP  = "vmtwin"
)

// twin is a machine like a member's, in the same libvirtd, of which the site knows nothing.
type twin struct {
	libvirtd int
	state    string
	client   *guestlink.Client
}

// saves compares saving a machine and letting it go on with virsh's save and restore of an identical one, in turn.
func (v *virtual) saves(ctx context.Context) (err error) {
	busy := load()
	if err := v.Create(ctx, 1); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Delete(context.WithoutCancel(ctx))) }()
	t, err := v.makeTwin(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.end(context.WithoutCancel(ctx))) }()
	saved := map[string][]float64{}
	restored, err := v.inTurn(partSaves, v.o.vmPairs, map[string]func() (float64, error){
		byHand: func() (float64, error) {
			begun := time.Now()
			if _, err := t.virsh(ctx, "save", twinName, t.state); err != nil {
				return 0, err
			}
			saved[byHand] = append(saved[byHand], time.Since(begun).Seconds())
			begun = time.Now()
			if _, err := t.virsh(ctx, "restore", t.state); err != nil {
				return 0, err
			}
			err := t.hear(ctx)
			return time.Since(begun).Seconds(), err
		},
		nearmetal: func() (float64, error) {
			begun := time.Now()
			if _, err := v.client.SaveCluster(ctx, clusterName); err != nil {
				return 0, err
			}
			if err := v.reach(ctx, api.ClusterSaved); err != nil {
				return 0, err
			}
			saved[nearmetal] = append(saved[nearmetal], time.Since(begun).Seconds())
			begun = time.Now()
			if _, err := v.client.RestoreCluster(ctx, clusterName); err != nil {
				return 0, err
			}
			err := v.reach(ctx, api.ClusterReady)
			return time.Since(begun).Seconds(), err
		},
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(v.text, "Save and restore of one virtual machine of %d MiB, %s, beside virsh on an identical one in the same libvirtd, %d pairs, load %s to %s\n",
		vmMemory>>20, accelerator(v.hand.args), v.o.vmPairs, busy, load())
	v.compare("save", saved, 0)
	v.compare("restore to ready (SSH answers)", restored, 0)
	v.text.WriteString("\n")
	return nil
}

// makeTwin defines a machine by the description of the cluster's member, and boots it until SSH answers.
func (v *virtual) makeTwin(ctx context.Context) (*twin, error) {
	agent, err := v.agentOf("n1")
	if err != nil {
		return nil, err
	}
	daemons := helpersOf(agent, nil)[kindLibvirt]
	if len(daemons) != 1 {
		return nil, fmt.Errorf("processes %v are the node's libvirtd, want one", daemons)
	}
	dir := v.work
	t := &twin{libvirtd: daemons[0], state: filepath.Join(dir, "twin.state")}
	names, err := t.virsh(ctx, "list", "--name")
	if err != nil {
		return nil, err
	}
	member := strings.TrimSpace(names)
	if member == "" || strings.Contains(member, "\n") {
		return nil, fmt.Errorf("libvirt's machines are %q, want the one member's", names)
	}
	text, err := t.virsh(ctx, "dumpxml", "--inactive", member)
	if err != nil {
		return nil, err
	}
	uuid, device := between(text, "<uuid>", "</uuid>"), between(text, "<target dev='nm", "'")
	if uuid == "" || device == "" {
		return nil, fmt.Errorf("libvirt's description of member %s has no UUID or no TAP device: %s", member, text)
	}
	text = strings.NewReplacer(member, twinName, uuid, twinUUID, "nm"+device, twinTAP).Replace(text)
	description := filepath.Join(dir, "twin.xml")
	if err := os.WriteFile(description, []byte(text), 0o600); err != nil {
		return nil, err
	}
	from, to := "/run/vm/"+member, "/run/vm/"+twinName
	script := fmt.Sprintf(`mkdir -p %[2]s/run %[2]s/link %[2]s/control
for f in %[1]s/kernel %[1]s/initrd %[1]s/root-*; do : > %[2]s/${f##*/}; mount --bind $f %[2]s/${f##*/}; done
ip tuntap add %[3]s mode tap; ip link set %[3]s up`, from, to, twinTAP)
	if _, err := t.inside(ctx, "sh", "-ec", script); err != nil {
		return nil, err
	}
	if _, err := t.virsh(ctx, "create", description); err != nil {
		return t, errors.Join(err, t.end(ctx))
	}
	t.dial()
	bound, cancel := context.WithTimeout(ctx, vmLimit)
	defer cancel()
	err = t.client.Setup(bound, guestlink.Setup{
		Hostname: "twin", Interfaces: []guestlink.Interface{{MAC: macOf(text), Name: "eth0", Address: netip.MustParsePrefix("10.99.71.2/24"), MTU: 1500}},
		Files: v.hand.files, Program: []string{"/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh/bench.conf"}, WatchdogSeconds: 60,
	})
	if err == nil {
		err = t.hear(bound)
	}
	if err != nil {
		return nil, errors.Join(err, t.end(ctx))
	}
	return t, nil
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

// inside runs a command where libvirtd is.
func (t *twin) inside(ctx context.Context, command ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"-t", fmt.Sprint(t.libvirtd), "-m", "-n", "--"}, command...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, out)
	}
	return string(out), nil
}

func (t *twin) virsh(ctx context.Context, args ...string) (string, error) {
	return t.inside(ctx, append([]string{"virsh", "-q", "-c", "qemu:///system?socket=/run/libvirt/libvirt-sock"}, args...)...)
}

// dial makes the way to the guest anew.
func (t *twin) dial() {
	if t.client != nil {
		t.client.Close()
	}
	path := fmt.Sprintf("/proc/%d/root/run/vm/%s/run/guest.sock", t.libvirtd, twinName)
	t.client = guestlink.NewClient(func(ctx context.Context) (net.Conn, error) { return dialSocket(ctx, path) })
}

// hear returns once the guest's SSH server speaks, by the same way as a member's.
func (t *twin) hear(ctx context.Context) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		conn, err := t.client.Dial(attempt, 22)
		if err == nil {
			err = hearBanner(conn)
			_ = conn.Close()
		}
		cancel()
		if err == nil {
			return nil
		}
		t.dial()
		if waited := wait(ctx, 5*time.Millisecond); waited != nil {
			return fmt.Errorf("no SSH server in the machine that virsh restored: %w", err)
		}
	}
}

// end removes the machine and what was made for it.
func (t *twin) end(ctx context.Context) error {
	if t.client != nil {
		t.client.Close()
	}
	_, _ = t.virsh(ctx, "destroy", twinName) // it may not run
	_, err := t.inside(ctx, "sh", "-c", fmt.Sprintf(`ip link delete %s; umount -l /run/vm/%[2]s/kernel /run/vm/%[2]s/initrd /run/vm/%[2]s/root-*; rm -rf /run/vm/%[2]s; true`, twinTAP, twinName))
	return err
}
