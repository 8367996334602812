package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/image"
)

// client is a machine's network: connections from its own address.
type client struct {
	machine   *Machine
	from      netip.Addr
	http      *http.Client
	transport *http.Transport
}

func (m *Machine) network(s *Stages) *client {
	c := &client{machine: m, from: s.Address.Addr()}
	c.transport = &http.Transport{DialContext: c.dial, ReadBufferSize: 64 << 10}
	c.http = &http.Client{Transport: c.transport}
	return c
}

func (c *client) close() { c.http.CloseIdleConnections() }

// socket opens a socket in the fleet's namespace, bound to the machine's address. Only the opening needs a thread inside the namespace,
// so that thousands of connections that wait don't hold a thread each.
func (c *client) socket(kind int) (*os.File, error) {
	fd := -1
	err := c.machine.fleet.inside(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "machine "+c.from.String())
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: c.from.As4()}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind to %s: %w", c.from, err), file.Close())
	}
	return file, nil
}

// dial connects over TCP.
func (c *client) dial(ctx context.Context, _, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	file, err := c.socket(unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer file.Close() // FileConn takes a copy
	stop := context.AfterFunc(ctx, func() { _ = file.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	started := false
	var result error
	err = raw.Write(func(fd uintptr) bool {
		if !started {
			started = true
			result = unix.Connect(int(fd), &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
			return !errors.Is(result, unix.EINPROGRESS)
		}
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			result = err
		case code != 0:
			result = unix.Errno(code)
		default:
			result = nil
		}
		return true
	})
	if err = errors.Join(err, result); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	return net.FileConn(file)
}

// get fetches a URL whole. What is named by its digest is verified; anything else is written to text, nil: dropped.
func (c *client) get(ctx context.Context, url string, text io.Writer) (int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, errors.New(response.Status)
	}
	digest := image.Digest("sha256:" + path.Base(request.URL.Path))
	sum := sha256.New()
	switch {
	case text != nil:
	case digest.Check() == nil && c.machine.index%verifyEvery == 0:
		text = sum
	default:
		text = io.Discard
	}
	n, err := io.Copy(text, response.Body)
	if err != nil {
		return n, err
	}
	if text == sum && hex.EncodeToString(sum.Sum(nil)) != digest.Hex() {
		return n, fmt.Errorf("%s: %w", digest, image.ErrDigest)
	}
	return n, nil
}

// verifyEvery is how many machines one verifies for: a thousand machines have a thousand processors to hash with, the fleet has few.
const verifyEvery = 16

// read reads the first want bytes (-1: all) of a blob by ranges, as a root is read.
func (c *client) read(ctx context.Context, url string, size, want int64) (int64, error) {
	if want < 0 || want > size {
		want = size
	}
	var got int64
	for got < want {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return got, err
		}
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", got, min(got+image.ChunkBytes, want)-1))
		response, err := c.http.Do(request)
		if err != nil {
			return got, err
		}
		n, err := io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		got += n
		switch {
		case err != nil:
			return got, err
		case response.StatusCode != http.StatusPartialContent:
			return got, errors.New(response.Status)
		case n == 0:
			return got, io.ErrUnexpectedEOF
		}
	}
	return got, nil
}

// TFTP's operation codes (RFC 1350, section 5; RFC 2347), and the options asked for (RFC 2348, RFC 7440), as OVMF asks.
const (
	tftpRead   = 1
	tftpData   = 3
	tftpAck    = 4
	tftpError  = 5
	tftpOption = 6
	blockBytes = 1468
	window     = 4
)

// tftp fetches a file and drops it.
func (c *client) tftp(ctx context.Context, server netip.Addr, name string, repeats *int) (int64, error) {
	file, err := c.socket(unix.SOCK_DGRAM)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	packets, err := net.FilePacketConn(file)
	if err != nil {
		return 0, err
	}
	defer packets.Close()
	stop := context.AfterFunc(ctx, func() { _ = packets.Close() })
	defer stop()

	request := []byte{0, tftpRead}
	for _, word := range []string{name, "octet", "tsize", "0", "blksize", strconv.Itoa(blockBytes), "windowsize", strconv.Itoa(window)} {
		request = append(append(request, word...), 0)
	}
	t := transfer{packets: packets, patience: c.machine.fleet.cfg.Patience, block: 512, window: 1}
	n, err := t.run(net.UDPAddrFromAddrPort(netip.AddrPortFrom(server, 69)), request)
	*repeats += t.repeats
	return n, errors.Join(err, ctx.Err())
}

// transfer is one file's.
type transfer struct {
	packets  net.PacketConn
	patience time.Duration
	block    int
	window   int
	repeats  int
}

// run sends the request and acknowledges blocks until the last one. What is sent last is sent again each time patience ends.
func (t *transfer) run(to net.Addr, last []byte) (int64, error) {
	var total int64
	next, sinceAck, tried := uint16(1), 0, 0
	told := false // what came in order, after something did not
	buffer := make([]byte, 65536)
	send := func() error { _, err := t.packets.WriteTo(last, to); return err }
	if err := send(); err != nil {
		return 0, err
	}
	for {
		_ = t.packets.SetReadDeadline(time.Now().Add(t.patience))
		n, from, err := t.packets.ReadFrom(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) && tried < tries {
			tried++
			told = false
			t.repeats++
			sinceAck = 0
			err = send()
			if err == nil {
				continue
			}
		}
		if err != nil {
			return total, err
		}
		if n < 4 {
			continue
		}
		p := buffer[:n]
		to = from // the server answers from a port of the transfer's own (RFC 1350, section 4)
		switch code, number := binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:]); {
		case code == tftpError:
			return total, fmt.Errorf("error %d: %s", number, p[4:])
		case code == tftpOption:
			t.accept(p[2:])
			last = acknowledge(0)
			err = send()
		case code == tftpData && number == next:
			total += int64(len(p) - 4)
			tried, told = 0, false
			sinceAck++
			last = acknowledge(next)
			next++
			if len(p)-4 < t.block {
				return total, send()
			}
			if sinceAck >= t.window {
				sinceAck = 0
				err = send()
			}
		case code == tftpData && !told:
			// A gap, or a window again: tell once what came in order (RFC 7440, section 4). Telling for each block would have each
			// answered with a window.
			sinceAck, told = 0, true
			err = send()
		}
		if err != nil {
			return total, err
		}
	}
}

func acknowledge(block uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{0, tftpAck}, block)
}

// accept takes what the server grants of the options.
func (t *transfer) accept(options []byte) {
	var words []string
	for len(options) > 0 {
		end := 0
		for end < len(options) && options[end] != 0 {
			end++
		}
		words = append(words, string(options[:end]))
		options = options[min(end+1, len(options)):]
	}
	for i := 0; i+1 < len(words); i += 2 {
		n, err := strconv.Atoi(words[i+1])
		switch {
		case err != nil || n <= 0:
		case words[i] == "blksize":
			t.block = n
		case words[i] == "windowsize":
			t.window = n
		}
	}
}
