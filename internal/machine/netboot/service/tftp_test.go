package service_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pin/tftp/v3"
)

func loader(name string) []byte { return bytes.Repeat([]byte(name+"\n"), 9000) }

// machine gives the client's end an address.
func (l *lab) machine() {
	l.t.Helper()
	l.start()
	l.service.SetTable(l.table(1, l.boot(7, "environment")))
	l.setMAC(known)
	if _, err := l.udhcpc(); err != nil {
		l.t.Fatal(err)
	}
}

func TestLoadersComeToClientsOthersWrote(t *testing.T) {
	l := newLab(t, nil)
	l.machine()
	want := loader("snponly.efi")
	check := func(t *testing.T) {
		t.Helper()
		got, err := os.ReadFile(filepath.Join(l.blobs.dir, "got"))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes came of %d, %v", len(got), len(want), err)
		}
		_ = os.Remove(filepath.Join(l.blobs.dir, "got"))
	}
	t.Run("tftp-hpa", func(t *testing.T) {
		l.t = t
		l.run("tftp", "-m", "binary", "10.77.0.1", "-c", "get", "snponly.efi", "got")
		check(t)
	})
	t.Run("curl, blksize", func(t *testing.T) {
		l.t = t
		l.run("curl", "-sS", "--tftp-blksize", "1400", "-o", "got", "tftp://10.77.0.1/snponly.efi")
		check(t)
	})
	t.Run("busybox, blksize and tsize", func(t *testing.T) {
		l.t = t
		l.run("busybox", "tftp", "-g", "-b", "65000", "-r", "/snponly.efi", "-l", "got", "10.77.0.1")
		check(t)
	})
	t.Run("atftp, windowsize", func(t *testing.T) {
		l.t = t
		out := l.run("atftp", "--verbose", "--trace", "--option", "blksize 1428", "--option", "windowsize 16", "--option", "tsize 0",
			"-g", "-r", "snponly.efi", "-l", "got", "10.77.0.1")
		if !strings.Contains(out, "windowsize: 16") {
			t.Errorf("no window was granted: %.600s", out)
		}
		check(t)
	})
	t.Run("pin/tftp", func(t *testing.T) {
		var got bytes.Buffer
		err := l.clients.Do(func() error {
			c, err := tftp.NewClient("10.77.0.1:69")
			if err != nil {
				return err
			}
			c.SetBlockSize(1024)
			from, err := c.Receive("snponly.efi", "octet")
			if err != nil {
				return err
			}
			_, err = from.WriteTo(&got)
			return err
		})
		if err != nil || !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%d bytes came of %d, %v", got.Len(), len(want), err)
		}
	})
}

func TestNothingButLoadersIsSent(t *testing.T) {
	l := newLab(t, nil)
	l.machine()
	for _, name := range []string{"../../../etc/passwd", "/etc/passwd", "snponly.efi/../undionly.kpxe", "./snponly.efi", "//snponly.efi", "SNPONLY.EFI", "passwd"} {
		out, err := l.try("curl", "-sS", "-m", "5", "-o", "got", "--path-as-is", "tftp://10.77.0.1/"+name)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 68 { // CURLE_TFTP_NOTFOUND
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
	if out, err := l.try("curl", "-sS", "-m", "5", "-T", "/etc/hostname", "tftp://10.77.0.1/new"); err == nil {
		t.Errorf("a file was written: %s", out)
	}
}

// windowed fetches a file with a window over a line that loses what lose says.
func (l *lab) windowed(name string, block, window int, lose func(arrival int) bool) ([]byte, error) {
	conn, err := l.socket(nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if err := request(conn, name, "blksize", strconv.Itoa(block), "windowsize", strconv.Itoa(window)); err != nil {
		return nil, err
	}
	return receive(conn, block, window, lose)
}

// socket is a client's, at one of its addresses.
func (l *lab) socket(at *net.UDPAddr) (conn *net.UDPConn, err error) {
	err = l.clients.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", at)
		return err
	})
	return conn, err
}

// request asks for a file.
func request(conn *net.UDPConn, name string, options ...string) error {
	packet := append([]byte{0, 1}, strings.Join(append([]string{name, "octet"}, options...), "\x00")+"\x00"...)
	_, err := conn.WriteToUDP(packet, &net.UDPAddr{IP: net.IPv4(10, 77, 0, 1), Port: 69})
	return err
}

// receive takes what was asked for. A packet that came from elsewhere than the first is none of this transfer (RFC 1350, section 4).
func receive(conn *net.UDPConn, block, window int, lose func(arrival int) bool) ([]byte, error) {
	var content []byte
	var server *net.UDPAddr
	expected, arrivals, sinceAck := uint16(1), 0, 0
	buffer := make([]byte, 70000)
	ack := func(to *net.UDPAddr) error {
		sinceAck = 0
		_, err := conn.WriteToUDP(binary.BigEndian.AppendUint16([]byte{0, 4}, expected-1), to)
		return err
	}
	for {
		if err := conn.SetReadDeadline(time.Now().Add(15 * time.Second)); err != nil {
			return nil, err
		}
		n, from, err := conn.ReadFromUDP(buffer)
		if err != nil {
			return nil, fmt.Errorf("after %d bytes: %w", len(content), err)
		}
		if arrivals++; lose(arrivals) {
			continue
		}
		if server == nil {
			server = from
		}
		if from.Port != server.Port {
			continue
		}
		switch buffer[1] {
		case 6:
			if !strings.Contains(string(buffer[:n]), "windowsize\x00"+strconv.Itoa(window)) {
				return nil, fmt.Errorf("granted %q", buffer[:n])
			}
			if err := ack(from); err != nil {
				return nil, err
			}
		case 3:
			sinceAck++
			if got := binary.BigEndian.Uint16(buffer[2:]); got != expected {
				if sinceAck >= window || got-expected < 1000 { // a gap: RFC 7440, section 4
					if err := ack(from); err != nil {
						return nil, err
					}
				}
				continue
			}
			content = append(content, buffer[4:n]...)
			expected++
			last := n-4 < block
			if sinceAck >= window || last {
				if err := ack(from); err != nil {
					return nil, err
				}
			}
			if last {
				return content, nil
			}
		default:
			return nil, fmt.Errorf("it sent %q", buffer[:n])
		}
	}
}

func TestALossyLineOnlyTakesLonger(t *testing.T) {
	l := newLab(t, nil)
	l.machine()
	want := loader("undionly.kpxe")
	for name, lose := range map[string]func(int) bool{
		"none":              func(int) bool { return false },
		"the first answer":  func(n int) bool { return n == 1 },
		"one in the middle": func(n int) bool { return n == 20 },
		"a window's first":  func(n int) bool { return n == 10 },
		"every thirteenth":  func(n int) bool { return n%13 == 0 },
		"a whole window":    func(n int) bool { return n > 17 && n < 27 },
	} {
		t.Run(name, func(t *testing.T) {
			got, err := l.windowed("undionly.kpxe", 1024, 8, lose)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes of %d: %v", len(got), len(want), err)
			}
		})
	}
}

// A client that waited too long for the answer asks twice, and takes what comes from the first port that answered.
func TestARequestThatIsReadLateEndsNoTransfer(t *testing.T) {
	l := newLab(t, nil)
	l.machine()
	conn, err := l.socket(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ask := func() {
		t.Helper()
		if err := request(conn, "snponly.efi", "blksize", "512", "windowsize", "1"); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	want := loader("snponly.efi")
	got, err := receive(conn, 512, 1, func(arrival int) bool {
		if arrival == 5 {
			ask()
		}
		return false
	})
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes came of %d: %v", len(got), len(want), err)
	}
}

// Firmware asks for the size, and for the file from the same port; that it gives the first up may be read after the second was begun.
func TestWhatIsSaidToAnEarlierTransferEndsNoLaterOne(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // however few threads carry transfers
	l := newLab(t, nil)
	l.machine()
	conn, err := l.socket(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ask := func(options ...string) *net.UDPAddr {
		t.Helper()
		if err := request(conn, "snponly.efi", options...); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(15 * time.Second))
		_, from, err := conn.ReadFromUDP(make([]byte, 2000))
		if err != nil {
			t.Fatal(err)
		}
		return from
	}
	first, second := ask("tsize", "0", "timeout", "30"), ask("blksize", "1400", "timeout", "30")
	for _, say := range []struct {
		packet string
		to     *net.UDPAddr
	}{{"\x00\x05\x00\x08no\x00", first}, {"\x00\x04\x00\x00", second}} {
		if _, err := conn.WriteToUDP([]byte(say.packet), say.to); err != nil {
			t.Fatal(err)
		}
	}
	buffer := make([]byte, 2000)
	if n, err := conn.Read(buffer); err != nil || n != 1404 {
		t.Errorf("%d bytes of the first block came, %v", n, err)
	}
}

// As firmware does: it asks for the size, gives that up, and asks for the file from the same port.
func TestAThousandClientsAtOnce(t *testing.T) {
	l := newLab(t, nil)
	l.machine()
	if out, err := l.try("ip", "route", "add", "local", "10.77.128.0/17", "dev", "lo"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := loader("snponly.efi")
	client := func(number int) error {
		conn, err := l.socket(&net.UDPAddr{IP: net.IPv4(10, 77, 128, 1+byte(number%250)), Port: 2070 + number/250})
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if err := request(conn, "snponly.efi", "tsize", "0", "timeout", "30"); err != nil {
			return err
		}
		buffer := make([]byte, 2000)
		if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			return err
		}
		n, from, err := conn.ReadFromUDP(buffer)
		if err != nil {
			return fmt.Errorf("the size: %w", err)
		}
		if size := fmt.Sprintf("\x00\x06tsize\x00%d\x00timeout\x0030\x00", len(want)); string(buffer[:n]) != size {
			return fmt.Errorf("the size is told as %q", buffer[:n])
		}
		if number%2 == 0 { // the others give it up without a word
			if _, err := conn.WriteToUDP([]byte("\x00\x05\x00\x08no\x00"), from); err != nil {
				return err
			}
		}
		if err := request(conn, "snponly.efi", "blksize", "1400", "windowsize", "4"); err != nil {
			return err
		}
		got, err := receive(conn, 1400, 4, func(int) bool { return false })
		if err == nil && !bytes.Equal(got, want) {
			err = fmt.Errorf("%d bytes came of %d", len(got), len(want))
		}
		return err
	}
	failed := make(chan error)
	for number := range 1000 {
		go func() { failed <- client(number) }()
	}
	var errs []error
	for range 1000 {
		if err := <-failed; err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		t.Errorf("%d of 1000 clients got no loader; the first: %v", len(errs), errs[0])
	}
}

// awaitFullSockets waits until so many UDP sockets of this namespace hold as much unsent data as they may: their next sender has to wait.
func awaitFullSockets(t *testing.T, want int) {
	t.Helper()
	most, err := os.ReadFile("/proc/sys/net/core/wmem_default")
	if err != nil {
		t.Fatal(err)
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(most)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	deadline, tick := time.After(20*time.Second), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for {
		table, err := os.ReadFile("/proc/thread-self/net/udp")
		if err != nil {
			t.Fatal(err)
		}
		full := 0
		for line := range strings.Lines(string(table)) {
			if fields := strings.Fields(line); len(fields) > 4 {
				unsent, _, _ := strings.Cut(fields[4], ":")
				if n, err := strconv.ParseInt(unsent, 16, 64); err == nil && n >= limit {
					full++
				}
			}
		}
		if full >= want {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d sockets are full, want %d:\n%s", full, want, table)
		}
	}
}

// What waits for such a line would keep the service from its end, and all others from their loaders.
func TestALineThatTakesNothingHoldsNobodyUp(t *testing.T) {
	l := newLab(t, nil)
	l.open()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- l.service.Run(ctx) }()
	l.service.SetTable(l.table(1, l.boot(7, "environment")))
	l.setMAC(known)
	if _, err := l.udhcpc(); err != nil {
		t.Fatal(err)
	}
	shape := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("tc", append([]string{"qdisc"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("tc: %v: %s", err, out)
		}
	}
	answers := map[*net.UDPConn]*net.UDPAddr{}
	for range 8 {
		conn, err := l.socket(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if err := request(conn, "snponly.efi", "blksize", "1400", "windowsize", "64"); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(15 * time.Second))
		if _, answers[conn], err = conn.ReadFromUDP(make([]byte, 2000)); err != nil {
			t.Fatal(err)
		}
	}
	shape("add", "dev", serverLink, "root", "tbf", "rate", "8bit", "burst", "1600", "limit", "64mb")
	for conn, server := range answers {
		if _, err := conn.WriteToUDP([]byte{0, 4, 0, 0}, server); err != nil {
			t.Fatal(err)
		}
	}
	awaitFullSockets(t, 2)
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the service does not end while the line takes nothing")
		shape("del", "dev", serverLink, "root")
		<-ended
	}
}

// A block's number wraps after 65535; the smallest blocks make a loader that long.
func TestBlockNumbersWrap(t *testing.T) {
	l := newLab(t, nil)
	l.machine()
	got, err := l.windowed("snponly.efi", 8, 64, func(int) bool { return false })
	if want := loader("snponly.efi"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d: %v", len(got), len(want), err)
	}
}
