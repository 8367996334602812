package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// seenBoot is what was seen of one machine's boot, from outside it: on the wire to the servers, and on its serial console. It is read the
// same way whoever serves. Times that were not reached are zero.
type seenBoot struct {
	// FirstDHCP is the machine's first packet for an address, LastLoader the last piece of script, kernel or initrd before its kernel asked for
	// an address, Call when the boot agent first called the boot API.
	FirstDHCP, LastLoader, Call time.Time
	// Welcome, Mounted, AgentRuns and Local are words of the boot agent.
	Welcome, Mounted, AgentRuns, Local time.Time
	// Offers and Scripts are how long the server took to answer requests for addresses and for scripts.
	Offers, Scripts []time.Duration
	// Failed is what a script by hand says of its failure.
	Failed string
	// AgentRead is what was read of the root when the node agent ran, as the boot agent told.
	AgentRead string

	asked, script time.Time
	kernel        bool // it runs
}

// watch is what sees.
type watch struct {
	conn *packet.Conn
	done chan struct{}

	mu    sync.Mutex
	boots map[string]*seenBoot // by MAC
}

const etherAll = 0x0003 // ETH_P_ALL

// watchLink begins to look at a link's packets.
func watchLink(name string) (*watch, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	conn, err := packet.Listen(link, packet.Raw, etherAll, nil)
	if err != nil {
		return nil, err
	}
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20) })
	}
	w := &watch{conn: conn, done: make(chan struct{}), boots: map[string]*seenBoot{}}
	go w.read()
	return w, nil
}

func (w *watch) close() error {
	err := w.conn.Close()
	<-w.done
	return err
}

// begin forgets what was seen and looks at these machines from now on.
func (w *watch) begin(macs []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.boots)
	for _, mac := range macs {
		w.boots[mac] = &seenBoot{}
	}
}

func (w *watch) seen(mac string) seenBoot {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b := w.boots[mac]; b != nil {
		return *b
	}
	return seenBoot{}
}

func (w *watch) read() {
	defer close(w.done)
	frame := make([]byte, 128<<10)
	for {
		n, _, err := w.conn.ReadFrom(frame)
		if err != nil {
			return
		}
		w.frame(frame[:n], time.Now())
	}
}

// frame looks at one packet: Ethernet, IPv4 (RFC 791), UDP or TCP.
func (w *watch) frame(f []byte, now time.Time) {
	if len(f) < 14+20+8 || binary.BigEndian.Uint16(f[12:]) != unix.ETH_P_IP {
		return
	}
	ip := f[14:]
	header := int(ip[0]&0xf) * 4
	if total := int(binary.BigEndian.Uint16(ip[2:])); total >= header && total < len(ip) {
		ip = ip[:total] // the rest is padding
	}
	if len(ip) < header+8 {
		return
	}
	segment := ip[header:]
	from, to := binary.BigEndian.Uint16(segment), binary.BigEndian.Uint16(segment[2:])
	w.mu.Lock()
	defer w.mu.Unlock()
	sender, receiver := w.boots[net.HardwareAddr(f[6:12]).String()], w.boots[net.HardwareAddr(f[:6]).String()]
	switch ip[9] {
	case unix.IPPROTO_UDP:
		w.dhcp(sender, from, to, segment[8:], now)
	case unix.IPPROTO_TCP:
		if len(segment) < 20 || len(segment) < int(segment[12]>>4)*4 {
			return
		}
		content := segment[int(segment[12]>>4)*4:]
		if sender != nil {
			sender.sends(to, segment[13]&0x02 != 0, content, now)
		}
		if receiver != nil && from == bootHTTPPort {
			receiver.gets(content, now)
		}
	}
}

// dhcp looks at a message (RFC 2131, section 2); chaddr tells whose an answer is.
func (w *watch) dhcp(sender *seenBoot, from, to uint16, message []byte, now time.Time) {
	switch {
	case sender != nil && from == 68 && to == 67:
		if sender.FirstDHCP.IsZero() {
			sender.FirstDHCP = now
		}
		sender.asked = now
		// The boot agent's own.
		if !bytes.Contains(message, []byte("PXEClient")) && !bytes.Contains(message, []byte("iPXE")) {
			sender.kernel = true
		}
	case from == 67 && to == 68 && len(message) > 34:
		b := w.boots[net.HardwareAddr(message[28:34]).String()]
		if b != nil && !b.asked.IsZero() {
			b.Offers = append(b.Offers, now.Sub(b.asked))
			b.asked = time.Time{}
		}
	}
}

func (b *seenBoot) sends(to uint16, opens bool, content []byte, now time.Time) {
	switch {
	case to == bootTLSPort && opens && b.Call.IsZero():
		b.Call = now
	case to == bootHTTPPort && bytes.HasPrefix(content, []byte("GET ")):
		line, _, _ := bytes.Cut(content, []byte("\r"))
		if bytes.Contains(line, []byte(".ipxe")) {
			b.script = now
		}
	}
}

func (b *seenBoot) gets(content []byte, now time.Time) {
	if len(content) == 0 {
		return
	}
	if !b.script.IsZero() {
		b.Scripts = append(b.Scripts, now.Sub(b.script))
		b.script = time.Time{}
	}
	if !b.kernel {
		b.LastLoader = now
	}
}

// errPanicked: a machine's kernel could not go on.
var errPanicked = errors.New("the machine's kernel panicked")

// console reads what a machine prints from now on until its root is local.
func (w *watch) console(ctx context.Context, mac, path string, from int64) error {
	f, err := os.Open(path)
	for errors.Is(err, os.ErrNotExist) { // it has never been on
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			return err
		}
		f, err = os.Open(path)
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(from, 0); err != nil {
		return err
	}
	var line []byte
	buffer := make([]byte, 64<<10)
	for {
		n, err := f.Read(buffer)
		now := time.Now()
		for _, c := range buffer[:n] {
			if line = append(line, c); c != '\n' {
				continue
			}
			if w.printed(mac, string(line), now) {
				return nil
			}
			if bytes.Contains(line, []byte("Kernel panic")) {
				return fmt.Errorf("%w: %s", errPanicked, bytes.TrimSpace(line))
			}
			line = line[:0]
		}
		if n == 0 {
			if waited := wait(ctx, 10*time.Millisecond); waited != nil {
				return errors.Join(waited, err)
			}
		}
	}
}

// printed takes one line of a console, and tells whether it was the last one of a boot.
func (w *watch) printed(mac, line string, now time.Time) (last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.boots[mac]
	_, said, ok := strings.Cut(line, "nearmetal: ")
	if !ok {
		_, said, ok = strings.Cut(line, "by hand: ") // peers/whole/init.sh
	}
	if b == nil || !ok {
		return false
	}
	set := func(t *time.Time) {
		if t.IsZero() {
			*t = now
		}
	}
	switch {
	case strings.HasPrefix(said, "welcome"):
		set(&b.Welcome)
	case strings.HasPrefix(said, "root mounted"):
		set(&b.Mounted)
	case strings.HasPrefix(said, "node agent started"):
		set(&b.AgentRuns)
		b.AgentRead = strings.TrimSpace(strings.TrimPrefix(said, "node agent started"))
	case strings.HasPrefix(said, "kernel runs"):
		set(&b.Call)
	case strings.HasPrefix(said, "failed"):
		b.Failed = said
		return true
	case strings.HasPrefix(said, "sshd started"):
		set(&b.AgentRuns)
		return true
	case strings.HasPrefix(said, "the root is entirely local"):
		set(&b.Local)
		return true
	}
	return false
}
