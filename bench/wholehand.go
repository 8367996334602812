package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// wholePeer is a cluster of machines as one makes it by hand: dnsmasq with an address for each MAC, iPXE, nginx, the kernel and the initrd of the
// environment, and beside them a busybox with a script (peers/whole/init.sh) that fetches the same root into memory and starts sshd in it.
type wholePeer struct {
	dir, images string
	manifest    []byte
	digest      image.Digest
	// hosts are the addresses of the machines, in their order.
	hosts []netip.Addr
	macs  []string
}

// openWholePeer takes images from a site's state directory, and makes what is made once: keys, and the archive with the script.
func openWholePeer(ctx context.Context, o options, state, dir, digest string, machines []vdc.Machine) (*wholePeer, error) {
	p := &wholePeer{dir: dir, images: filepath.Join(state, "images"), digest: image.Digest(digest)}
	tree := filepath.Join(dir, "archive")
	err := os.MkdirAll(filepath.Join(tree, "keys"), 0o755)
	if err != nil {
		return nil, err
	}
	if p.manifest, err = os.ReadFile(filepath.Join(p.images, p.digest.Hex())); err != nil {
		return nil, err
	}
	hosts := "127.0.0.1 localhost\n"
	for i, m := range machines {
		address := netip.AddrFrom4([4]byte{10, 99, 60, byte(11 + i)})
		p.hosts, p.macs = append(p.hosts, address), append(p.macs, m.MAC)
		hosts += fmt.Sprintf("%s h%d\n", address, i)
	}
	for _, key := range []string{"id", "host"} {
		if out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(tree, "keys", key)).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ssh-keygen: %w: %s", err, out)
		}
	}
	const quiet = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
	err = errors.Join(
		os.WriteFile(filepath.Join(tree, "keys", "hosts"), []byte(hosts), 0o644),
		os.WriteFile(filepath.Join(tree, "keys", "config"), []byte(quiet), 0o600),
		copyFile(filepath.Join(o.peers, "whole", "init.sh"), filepath.Join(tree, "init")),
		copyFile(filepath.Join(o.peers, "whole", "udhcpc.sh"), filepath.Join(tree, "udhcpc.sh")),
	)
	if err != nil {
		return nil, err
	}
	if err := addBusybox(tree); err != nil {
		return nil, err
	}
	pack := exec.CommandContext(ctx, "sh", "-ec", `cd "$1" && find . | cpio --quiet -o -H newc >"$2"`, "sh", tree, filepath.Join(dir, "hand.cpio"))
	if out, err := pack.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cpio: %w: %s", err, out)
	}
	return p, nil
}

// addBusybox puts Debian's busybox and the libraries that it names into a tree.
func addBusybox(tree string) error {
	program, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("%w (setup/install.sh test installs it)", err)
	}
	needs := []string{program}
	for at := 0; at < len(needs); at++ {
		f, err := elf.Open(needs[at])
		if err != nil {
			return err
		}
		libraries, err := f.ImportedLibraries()
		if section := f.Section(".interp"); section != nil {
			loader, _ := section.Data()
			libraries = append(libraries, string(bytes.TrimRight(loader, "\x00")))
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		for _, name := range libraries {
			path, err := library(name)
			if err != nil {
				return fmt.Errorf("%s needs %s: %w", needs[at], name, err)
			}
			if !slices.Contains(needs, path) {
				needs = append(needs, path)
			}
		}
	}
	for _, path := range needs {
		to := filepath.Join(tree, path)
		if path == program {
			to = filepath.Join(tree, "bin", "busybox")
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), copyFile(path, to)); err != nil {
			return err
		}
	}
	return nil
}

// library is where a shared library is on this machine, by its name or path.
func library(name string) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil
	}
	for _, dir := range []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64"} {
		if path := filepath.Join(dir, name); exists(path) {
			return path, nil
		}
	}
	return "", fs.ErrNotExist
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// copyFile copies a program or script.
func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}

// start runs the servers until they are stopped.
func (p *wholePeer) start(ctx context.Context) (stop func() error, err error) {
	manifest, err := image.Decode(p.manifest, p.digest)
	if err != nil {
		return nil, err
	}
	base := fmt.Sprintf("http://%s:%d", bootServer, bootHTTPPort)
	script := fmt.Sprintf("#!ipxe\nkernel --name kernel %[1]s/images/%[2]s initrd=initrd initrd=hand %[3]s hand.mac=${netX/mac} hand.root=%[1]s/images/%[4]s\n"+
		"initrd --name initrd %[1]s/images/%[5]s\ninitrd --name hand %[1]s/hand.cpio\nboot\n",
		base, manifest.Metal.Kernel.Digest.Hex(), manifest.Metal.Arguments, manifest.Root.Digest.Hex(), manifest.Metal.Initrd.Digest.Hex())
	conf := fmt.Sprintf(`worker_processes auto; daemon off; pid %[1]s/nginx.pid; error_log stderr warn; user root;
events { worker_connections 4096; }
http { access_log off; sendfile on; tcp_nopush on; client_body_temp_path %[1]s/t1; proxy_temp_path %[1]s/t2; fastcgi_temp_path %[1]s/t3;
 uwsgi_temp_path %[1]s/t4; scgi_temp_path %[1]s/t5; default_type application/octet-stream;
 server { listen %[2]s:%[3]d; location /images/ { alias %[4]s/; } location / { root %[1]s; } } }
`, p.dir, bootServer, bootHTTPPort, p.images)
	err = errors.Join(
		os.WriteFile(filepath.Join(p.dir, "boot.ipxe"), []byte(script), 0o644),
		os.WriteFile(filepath.Join(p.dir, "nginx.conf"), []byte(conf), 0o644),
	)
	if err != nil {
		return nil, err
	}
	_ = os.Remove(filepath.Join(p.dir, "leases"))
	// What boots the machine soonest (bootPeer.quick).
	args := []string{
		"--keep-in-foreground", "--port=0", "--conf-file=/dev/null", "--interface=" + bootCable, "--bind-interfaces", "--user=root", "--pid-file",
		"--dhcp-leasefile=" + filepath.Join(p.dir, "leases"), "--log-facility=-", "--dhcp-authoritative", "--dhcp-range=10.99.60.100,10.99.60.200,255.255.255.0,1h",
		"--enable-tftp", "--tftp-root=/usr/lib/ipxe", "--dhcp-userclass=set:ipxe,iPXE", "--dhcp-match=set:bios,option:client-arch,0",
		"--dhcp-boot=tag:!ipxe,tag:bios,undionly.kpxe", "--dhcp-boot=tag:!ipxe,tag:!bios,snponly.efi", "--dhcp-boot=tag:ipxe," + base + "/boot.ipxe",
		"--no-ping", "--enable-ra", "--dhcp-range=fd00:60::,ra-only,64",
	}
	for i, mac := range p.macs {
		args = append(args, fmt.Sprintf("--dhcp-host=%s,%s", mac, p.hosts[i]))
	}
	c := &cable{dir: p.dir}
	s, err := c.serve(ctx, func(*server) error {
		return errors.Join(bound(ctx, "udp", 67), bound(ctx, "tcp", bootHTTPPort))
	}, exec.Command("dnsmasq", args...), exec.Command("nginx", "-c", filepath.Join(p.dir, "nginx.conf"), "-e", "stderr"))
	if err != nil {
		return nil, err
	}
	return s.stop, nil
}

// ssh is a command of ssh or scp as root with the key of all machines.
func (p *wholePeer) ssh(ctx context.Context, program string, args ...string) *exec.Cmd {
	keys := filepath.Join(p.dir, "archive", "keys")
	all := append([]string{"-F", filepath.Join(keys, "config"), "-i", filepath.Join(keys, "id"), "-o", "ConnectTimeout=2", "-o", "BatchMode=yes"}, args...)
	return exec.CommandContext(ctx, program, all...)
}

// reachable waits until a machine lets one log in.
func (p *wholePeer) reachable(ctx context.Context, i int) error {
	const pause = 20 * time.Millisecond
	for {
		if p.ssh(ctx, "ssh", "root@"+p.hosts[i].String(), "true").Run() == nil {
			return nil
		}
		if err := wait(ctx, pause); err != nil {
			return fmt.Errorf("machine %d lets nobody log in: %w", i, err)
		}
	}
}

// mpi runs a program of MPI on the first count machines, and returns what it printed.
func (p *wholePeer) mpi(ctx context.Context, program string, count int) (string, error) {
	first := "root@" + p.hosts[0].String()
	if out, err := p.ssh(ctx, "scp", "-q", program, first+":hello").CombinedOutput(); err != nil {
		return "", fmt.Errorf("scp: %w: %s", err, out)
	}
	var hosts, others []string
	for i := range count {
		hosts = append(hosts, fmt.Sprintf("h%d:%d", i, wholeCores))
		if i > 0 {
			others = append(others, fmt.Sprintf("h%d", i))
		}
	}
	command := spreadHello(others) + fmt.Sprintf("mpirun --allow-run-as-root -n %d --map-by node --host %s ./hello", ranksOf(count), strings.Join(hosts, ","))
	out, err := p.ssh(ctx, "ssh", first, command).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("mpirun by hand: %w: %s", err, out)
	}
	return string(out), nil
}
