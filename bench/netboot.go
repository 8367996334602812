package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// The cable that network boot is measured on: the servers' end is in the bench's namespace, the clients' end in one of its own.
const (
	bootLink      = "boot0"
	nicLink       = "nic0"
	serverAddress = "10.77.0.1"
	relayAddress  = "10.77.0.9" // perfdhcp speaks as a relay
	httpPort      = 8069
)

// cable is the measured link.
type cable struct {
	clients netns.Handle
	dir     string
	program string // netbootd
}

// layCable makes the link and builds the program that runs network boot alone.
func layCable(ctx context.Context, o options, work string) (*cable, error) {
	c := &cable{dir: filepath.Join(work, "netboot"), program: filepath.Join(work, "netbootd")}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, o.goTool, "build", "-o", c.program, "./tools/netbootd").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building tools/netbootd: %w: %s", err, out)
	}
	var err error
	if c.clients, err = netns.New(); err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bootLink
	err = errors.Join(
		netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: nicLink, PeerNamespace: netlink.NsFd(c.clients.FD())}),
		raise(bootLink, serverAddress),
		c.clients.Do(func() error { return errors.Join(raise("lo", ""), raise(nicLink, relayAddress)) }),
	)
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// networkBoot measures all of network boot.
func networkBoot(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) (err error) {
	c, err := layCable(ctx, o, work)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	parts := map[string]func(context.Context, *cable, *slog.Logger, *bytes.Buffer) error{"dhcp": dhcpLoad, "transfers": transfers, "storms": storms}
	for _, name := range o.chosen.of(groupNetboot) {
		begin(o, log, name)
		if err := parts[name](ctx, c, log, text); err != nil {
			return err
		}
	}
	return nil
}

func raise(name, address string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if address != "" {
		prefix := &net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(16, 32)}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: prefix}); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

func (c *cable) close() error {
	if link, err := netlink.LinkByName(bootLink); err == nil {
		if err := netlink.LinkDel(link); err != nil {
			return err
		}
	}
	return c.clients.Close()
}

// shape bounds the servers' end to bits per second with one plain queue of 50 ms, as a switch's port has; 0: no bound.
func (c *cable) shape(ctx context.Context, bits int64) error { return shape(ctx, bootLink, bits) }

// shape bounds what goes out on a link to so many bits per second; 0: not at all.
func shape(ctx context.Context, link string, bits int64) error {
	args := []string{"qdisc", "replace", "dev", link, "root", "tbf", "rate", strconv.FormatInt(bits, 10) + "bit", "burst", "256kb", "latency", "50ms"}
	if bits == 0 {
		args = []string{"qdisc", "del", "dev", link, "root"}
	}
	if out, err := exec.CommandContext(ctx, "tc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("tc %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// server is a running program, or several, with what it takes of the processors.
type server struct {
	commands []*exec.Cmd
	log      *os.File
}

// serve starts programs and waits until the last one is ready.
func (c *cable) serve(ctx context.Context, ready func(*server) error, commands ...*exec.Cmd) (*server, error) {
	log, err := os.CreateTemp(c.dir, "server-*.log")
	if err != nil {
		return nil, err
	}
	s := &server{log: log}
	for _, cmd := range commands {
		cmd.Stderr = log
		if cmd.Stdout == nil {
			cmd.Stdout = log
		}
		if err := cmd.Start(); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w (setup/install.sh bench installs it)", cmd.Path, err), s.stop())
		}
		s.commands = append(s.commands, cmd)
	}
	if err := ready(s); err != nil {
		said, _ := os.ReadFile(log.Name())
		return nil, errors.Join(fmt.Errorf("%s: %w; its output: %s", commands[0].Path, err, said), s.stop())
	}
	return s, ctx.Err()
}

func (s *server) stop() error {
	for _, cmd := range s.commands {
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, cmd := range s.commands {
		done := make(chan struct{})
		go func() { _ = cmd.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
	}
	return s.log.Close()
}

// cpuSeconds is what the programs and their children have used so far.
func (s *server) cpuSeconds() float64 {
	total := 0.0
	for _, cmd := range s.commands {
		total += cpuOf(cmd.Process.Pid)
	}
	return total
}

const clockTicks = 100 // of /proc/PID/stat, on every architecture Linux runs here

func cpuOf(pid int) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	total := 0.0
	for _, i := range []int{11, 12, 13, 14} { // utime, stime, cutime, cstime (proc(5))
		if n, err := strconv.ParseFloat(fields[i], 64); err == nil {
			total += n / clockTicks
		}
	}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, child := range strings.Fields(string(children)) {
		if n, err := strconv.Atoi(child); err == nil {
			total += cpuOf(n)
		}
	}
	return total
}

// netbootd starts network boot; it says "ready" when its sockets are bound, and answers a tenth of a second later, after its probe.
func (c *cable) netbootd(ctx context.Context, args ...string) (*server, error) {
	cmd := exec.Command(c.program, append([]string{"-interface", bootLink, "-loaders", c.dir, "-blobs", c.dir}, args...)...)
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	cmd.Stdout = w
	return c.serve(ctx, func(*server) error {
		_ = w.Close()
		line, err := bufio.NewReader(r).ReadString('\n')
		if line != "ready\n" {
			return fmt.Errorf("it did not become ready: %w", err)
		}
		return wait(ctx, 300*time.Millisecond)
	}, cmd)
}

// nginx as its documentation recommends for files: sendfile, tcp_nopush, a worker a core, no access log.
func (c *cable) nginx() (*exec.Cmd, error) {
	conf := fmt.Sprintf(`worker_processes auto; worker_rlimit_nofile 8192; daemon off; pid %[1]s/nginx.pid; error_log stderr warn; user root;
events { worker_connections 4096; }
http { access_log off; sendfile on; tcp_nopush on; client_body_temp_path %[1]s/t1; proxy_temp_path %[1]s/t2; fastcgi_temp_path %[1]s/t3;
 uwsgi_temp_path %[1]s/t4; scgi_temp_path %[1]s/t5; default_type application/octet-stream;
 server { listen %[2]s:%[3]d backlog=2048; location /images/ { alias %[1]s/; } location = /boot.ipxe { alias %[1]s/boot.ipxe; } } }
`, c.dir, serverAddress, httpPort)
	path := filepath.Join(c.dir, "nginx.conf")
	return exec.Command("nginx", "-c", path, "-e", "stderr"), os.WriteFile(path, []byte(conf), 0o644)
}

// dnsmasq gives addresses without asking the wire first, keeps its leases in a file, and sends loaders if asked to.
func (c *cable) dnsmasq(args ...string) *exec.Cmd {
	return exec.Command("dnsmasq", append([]string{
		"--keep-in-foreground", "--port=0", "--conf-file=/dev/null", "--interface=" + bootLink, "--bind-interfaces", "--user=root", "--pid-file",
		"--no-ping", "--dhcp-lease-max=100000", "--dhcp-leasefile=" + filepath.Join(c.dir, "dnsmasq.leases"), "--log-facility=-", "--quiet-dhcp",
		"--dhcp-range=10.77.16.1,10.77.255.254,255.255.0.0,1h",
	}, args...)...)
}

// bound waits until a port of the servers' end is bound, by the kernel's own table (/proc/net/tcp or udp).
func bound(ctx context.Context, proto string, port int) error {
	want := fmt.Sprintf(":%04X ", port)
	for range 200 {
		table, err := os.ReadFile("/proc/thread-self/net/" + proto)
		if err != nil {
			return err
		}
		if strings.Contains(string(table), want) {
			return nil
		}
		if err := wait(ctx, 25*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("nothing listens on %s port %d", proto, port)
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// inClients runs a program at the clients' end.
func (c *cable) inClients(cmd *exec.Cmd) error {
	if err := c.clients.Do(cmd.Start); err != nil {
		return err
	}
	return cmd.Wait()
}
