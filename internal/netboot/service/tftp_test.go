package service_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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
	var conn *net.UDPConn
	err := l.clients.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	request := append([]byte{0, 1}, fmt.Sprintf("%s\x00octet\x00blksize\x00%d\x00windowsize\x00%d\x00", name, block, window)...)
	if _, err := conn.WriteToUDP(request, &net.UDPAddr{IP: net.IPv4(10, 77, 0, 1), Port: 69}); err != nil {
		return nil, err
	}
	var content []byte
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

// A block's number wraps after 65535; the smallest blocks make a loader that long.
func TestBlockNumbersWrap(t *testing.T) {
	l := newLab(t, nil)
	l.machine()
	got, err := l.windowed("snponly.efi", 8, 64, func(int) bool { return false })
	if want := loader("snponly.efi"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d: %v", len(got), len(want), err)
	}
}
