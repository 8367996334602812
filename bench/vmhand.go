package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// handBridge is where machines by hand have their TAP devices, handNetwork the bridge's address there.
const (
	handBridge  = "vmhand"
	handNetwork = "10.99.70.1/24"
)

// handMachines starts machines by the command line of a site's QEMU, with nothing else of the site: the same kernel, initial RAM disk, root, devices,
// accelerator, memory and CPU.
type handMachines struct {
	dir    string
	args   []string
	places places
	mac    string
	// files are what its guests get, and program is what they run.
	files   []guestlink.File
	program []string
	// first is the number of the first machine of a start, queues how many queues each NIC has, 0 for as many as the site's.
	first, queues int
}

// viewOf is where libvirt's mount namespace has the files of the machine in a QEMU command line.
var viewPath = regexp.MustCompile(`/run/vm/[^/",]+`)

var macText = regexp.MustCompile(`"mac":"([0-9a-f:]{17})"`)

// readMachine takes over what a QEMU of the site runs on.
func readMachine(ctx context.Context, pid int, cpus []int, dir string) (*handMachines, error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil, err
	}
	h := &handMachines{dir: dir, args: strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")}
	view := viewPath.FindString(string(line))
	mac := macText.FindStringSubmatch(string(line))
	if view == "" || mac == nil {
		return nil, fmt.Errorf("QEMU's command line names no view of a machine or no MAC address: %q", line)
	}
	h.mac, h.program = mac[1], []string{"/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh/bench.conf"}
	if h.places, err = learnPlaces(pid, cpus); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	if err := copyFiles(ctx, pid, view, dir); err != nil {
		return nil, err
	}
	for i, arg := range h.args {
		h.args[i] = strings.ReplaceAll(arg, view, dir)
	}
	h.files, err = sshFiles(ctx, dir)
	return h, err
}

// sshFiles are those by which sshd runs in a guest.
func sshFiles(ctx context.Context, dir string) ([]guestlink.File, error) {
	key := filepath.Join(dir, "host-key")
	if out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("ssh-keygen: %w: %s", err, out)
	}
	private, err := os.ReadFile(key)
	return []guestlink.File{
		{Path: "/etc/ssh/bench-key", Content: private, Mode: 0o600},
		{Path: "/etc/ssh/bench.conf", Content: []byte("HostKey /etc/ssh/bench-key\nUsePAM no\nUseDNS no\nPidFile none\n"), Mode: 0o644},
		{Path: "/run/sshd/.made", Mode: 0o644},
	}, err
}

// layBridge makes the bridge of machines by hand. A first ARP request is lost while a guest boots; the kernel asks again after 10 ms instead of 1 s.
func layBridge(ctx context.Context) error {
	for _, command := range []string{"ip link add " + handBridge + " type bridge", "ip addr add " + handNetwork + " dev " + handBridge, "ip link set " + handBridge + " up"} {
		words := strings.Fields(command)
		if out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/neigh/"+handBridge+"/retrans_time_ms", []byte("10"), 0o644)
}

func removeBridge() error {
	out, err := exec.Command("ip", "link", "delete", handBridge).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip link delete %s: %w: %s", handBridge, err, out)
	}
	return nil
}

// handedOver is an argument of QEMU by which libvirt hands it an open file.
var handedOver = regexp.MustCompile(`"?fds?"?[=:]"?([0-9:]+)"?,?`)

// handArguments is pure: the command line of libvirt's QEMU, as one would give it by hand. What libvirt opens for it QEMU opens itself: sockets below
// run, and a TAP device. libvirt's own monitor and secret are omitted, and so is the pause before the first instruction. queues replaces the number of
// the NIC's queues; 0 keeps it.
func handArguments(args []string, run, tap, name string, queues int) ([]string, error) {
	var out []string
	for i := 1; i < len(args); i++ {
		option := args[i]
		if option == "-S" {
			continue
		}
		if !takesValue(option) || i+1 == len(args) {
			out = append(out, option)
			continue
		}
		i++
		value := args[i]
		switch {
		case option == "-object" && strings.Contains(value, "masterKey0"), strings.Contains(value, "charmonitor"):
			continue
		case option == "-name":
			value = name
		case option == "-chardev" && strings.HasPrefix(value, "socket,"):
			id := regexp.MustCompile(`id=([a-z0-9]+)`).FindStringSubmatch(value)
			if id == nil {
				return nil, fmt.Errorf("a character device has no ID: %s", value)
			}
			way := "server=on,wait=off"
			if strings.Contains(value, "reconnect=") {
				way = "reconnect=1"
			}
			value = fmt.Sprintf("socket,id=%s,path=%s,%s", id[1], filepath.Join(run, id[1]), way)
		case option == "-netdev":
			value = tapArgument(value, tap, queues)
		case option == "-device" && queues == 1:
			value = strings.ReplaceAll(value, `"mq":true`, `"mq":false`)
		}
		if strings.Contains(value, "/dev/fdset") || option != "-netdev" && handedOver.MatchString(value) && strings.Contains(value, "fd=") {
			return nil, fmt.Errorf("%s %s hands over an open file in a way that this bench does not know", option, value)
		}
		out = append(out, option, value)
	}
	return out, nil
}

// tapArgument is a NIC's device on the host, with as many queues and by the same way (vhost) as libvirt's argument has it.
func tapArgument(value, tap string, queues int) string {
	argument := "tap,id=hostnet0,script=no,downscript=no,ifname=" + tap
	if fds := handedOver.FindStringSubmatch(value); queues == 0 && fds != nil {
		queues = 1 + strings.Count(fds[1], ":")
	}
	if queues > 1 {
		argument += ",queues=" + strconv.Itoa(queues)
	}
	if strings.Contains(value, `"vhost":true`) || strings.Contains(value, "vhost=on") {
		argument += ",vhost=on"
	}
	return argument
}

// takesValue reports whether an option of QEMU is followed by its value.
func takesValue(option string) bool {
	return !slices.Contains([]string{"-S", "-no-user-config", "-nodefaults", "-no-shutdown", "-no-reboot", "-no-hpet", "-no-acpi", "-enable-kvm"}, option)
}

// handRun is the machines of one start by hand.
type handRun struct {
	machines []*handMachine
	places   places
}

type handMachine struct {
	n       int
	cmd     *exec.Cmd
	client  *guestlink.Client
	sinks   []net.Listener
	tap     string
	said    bytes.Buffer
	address netip.Addr
}

// start starts machines at once, and returns once SSH has spoken on all. Its result has to be ended, also with an error.
func (h *handMachines) start(ctx context.Context, count int) (*handRun, error) {
	return h.startUntil(ctx, count, func(ctx context.Context, m *handMachine) error {
		return awaitSSH(ctx, netip.AddrPortFrom(m.address, 22).String())
	})
}

// startUntil starts machines at once, and returns once each is ready. Its result has to be ended, also with an error.
func (h *handMachines) startUntil(ctx context.Context, count int, ready func(context.Context, *handMachine) error) (*handRun, error) {
	ctx, cancel := context.WithTimeout(ctx, vmLimit)
	defer cancel()
	run := &handRun{places: h.places}
	brought := make(chan error, count)
	started := 0
	var err error
	for n := h.first; n < h.first+count; n++ {
		var m *handMachine
		if m, err = h.launch(ctx, n); m != nil {
			run.machines = append(run.machines, m)
		}
		if err != nil {
			break
		}
		started++
		go func() {
			err := h.bring(ctx, m)
			if err == nil {
				err = ready(ctx, m)
			}
			if err != nil {
				err = fmt.Errorf("machine %d: %w; QEMU said: %s", n, err, m.said.String())
			}
			brought <- err
		}()
	}
	for range started {
		if e := <-brought; e != nil {
			err = errors.Join(err, e)
			cancel()
		}
	}
	return run, err
}

// launch starts QEMU.
func (h *handMachines) launch(ctx context.Context, n int) (*handMachine, error) {
	run := filepath.Join(h.dir, fmt.Sprint("run", n))
	m := &handMachine{n: n, tap: fmt.Sprint("vmhand", n), address: netip.AddrFrom4([4]byte{10, 99, 70, byte(10 + n)})}
	if err := errors.Join(os.RemoveAll(run), os.Mkdir(run, 0o700)); err != nil {
		return m, err
	}
	args, err := handArguments(h.args, run, m.tap, fmt.Sprint("by-hand-", n), h.queues)
	if err != nil {
		return m, err
	}
	for i, arg := range args {
		args[i] = strings.ReplaceAll(arg, h.mac, handMAC(n))
	}
	for _, id := range []string{"charchannel1", "charchannel2"} { // the node agent's ends, where nobody speaks
		sink, err := net.Listen("unix", filepath.Join(run, id))
		if err != nil {
			return m, err
		}
		m.sinks = append(m.sinks, sink)
	}
	tuntap := []string{"tuntap", "add", m.tap, "mode", "tap"}
	if slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, ",queues=") }) {
		tuntap = append(tuntap, "multi_queue")
	}
	for _, words := range [][]string{tuntap, {"link", "set", m.tap, "master", handBridge, "up"}} {
		if out, err := exec.CommandContext(ctx, "ip", words...).CombinedOutput(); err != nil {
			return m, fmt.Errorf("ip %s: %w: %s", strings.Join(words, " "), err, out)
		}
	}
	// It must outlive nobody: not CommandContext, since end waits for it in order.
	m.cmd = exec.Command("taskset", append([]string{"-c", h.places.cpus(n), h.args[0]}, args...)...)
	m.cmd.Stdout, m.cmd.Stderr = &m.said, &m.said
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		m.cmd = nil
		return m, err
	}
	return m, h.places.join(m.cmd.Process.Pid, n)
}

func handMAC(n int) string { return fmt.Sprintf("02:be:00:00:00:%02x", n) }

// bring gives a guest what it needs for its program.
func (h *handMachines) bring(ctx context.Context, m *handMachine) error {
	socket := filepath.Join(h.dir, fmt.Sprint("run", m.n), "charchannel0")
	m.client = guestlink.NewClient(func(ctx context.Context) (net.Conn, error) { return dialSocket(ctx, socket) })
	return m.client.Setup(ctx, guestlink.Setup{
		Hostname:   fmt.Sprint("hand", m.n),
		Interfaces: []guestlink.Interface{{MAC: handMAC(m.n), Name: "eth0", Address: netip.PrefixFrom(m.address, 24), MTU: 1500}},
		Files:      h.files, Program: h.program, WatchdogSeconds: 60,
	})
}

// dialSocket connects to a socket that QEMU is about to make.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err == nil || !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) {
			return conn, err
		}
		if err := wait(ctx, 2*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// awaitSSH returns once an SSH server has spoken.
func awaitSSH(ctx context.Context, address string) error {
	for {
		err := hearSSH(ctx, address)
		if err == nil {
			return nil
		}
		if waited := wait(ctx, 5*time.Millisecond); waited != nil {
			return fmt.Errorf("no SSH server at %s: %w", address, err)
		}
	}
}

func hearSSH(ctx context.Context, address string) error {
	dialer := net.Dialer{Timeout: 200 * time.Millisecond}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return hearBanner(conn)
}

// hearBanner reads the beginning of an SSH server's identification (RFC 4253, section 4.2).
func hearBanner(conn net.Conn) error {
	begin := make([]byte, 4)
	if _, err := conn.Read(begin); err != nil {
		return err
	}
	if string(begin) != "SSH-" {
		return fmt.Errorf("it says %q", begin)
	}
	return nil
}

func (r *handRun) pids() (pids []int) {
	for _, m := range r.machines {
		pids = append(pids, m.cmd.Process.Pid)
	}
	return pids
}

// end ends all machines and removes their devices.
func (r *handRun) end() (err error) {
	for _, m := range r.machines {
		if m.client != nil {
			m.client.Close()
		}
		for _, sink := range m.sinks {
			_ = sink.Close()
		}
		if m.cmd == nil {
			continue
		}
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		r.places.leave(m.n)
		if out, e := exec.Command("ip", "link", "delete", m.tap).CombinedOutput(); e != nil {
			err = errors.Join(err, fmt.Errorf("ip link delete %s: %w: %s", m.tap, e, out))
		}
	}
	return err
}
