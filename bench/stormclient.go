package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Patience of real clients: PXE and iPXE ask again after a second, then after twice as long, up to four times (iPXE's DHCP); TFTP likewise.
// iPXE waits for a server's next byte without end; two minutes are taken for a failure here.
const (
	firstRetry  = time.Second
	maxRetries  = 6
	httpSilence = 2 * time.Minute
)

// stormClient is one machine of a storm.
type stormClient struct {
	crowd   *crowd
	mac     net.HardwareAddr
	answers chan *dhcpv4.DHCPv4
	address net.IP
	silence time.Duration
	// stages is how long each stage of its boot took, in order.
	stages []string
}

// stage notes how long a stage took that began then.
func (m *stormClient) stage(name string, began time.Time) {
	m.stages = append(m.stages, fmt.Sprintf("%s %.1f s", name, time.Since(began).Seconds()))
}

// crowd is all of them; they share the clients' DHCP port, as they share the link.
type crowd struct {
	order stormOrder
	conn  net.PacketConn
	link  netlink.Link
	mu    sync.Mutex
	by    map[string]*stormClient
}

// runStorm is the storm's clients: it runs at their end and prints what they saw.
func runStorm() error {
	c := &crowd{by: map[string]*stormClient{}}
	if err := json.Unmarshal([]byte(os.Getenv(stormVariable)), &c.order); err != nil {
		return err
	}
	if err := c.open(); err != nil {
		return err
	}
	go c.listen()
	for i := range c.order.Clients {
		m := &stormClient{crowd: c, mac: net.HardwareAddr{2, 0x77, 0, 0, byte(i >> 8), byte(i)}, answers: make(chan *dhcpv4.DHCPv4, 8)}
		c.by[m.mac.String()] = m
	}
	var result stormResult
	var group sync.WaitGroup
	begin := time.Now()
	for _, m := range c.by {
		group.Go(func() {
			err := m.boot()
			c.mu.Lock()
			defer c.mu.Unlock()
			if err != nil {
				result.Failed = append(result.Failed, fmt.Sprintf("%s: %v", m.mac, err))
			}
			result.Seconds = append(result.Seconds, time.Since(begin).Seconds())
			result.Last = strings.Join(m.stages, ", ") // of who ends last
			result.LongestSilence = max(result.LongestSilence, m.silence.Seconds())
		})
	}
	group.Wait()
	addrs, err := netlink.AddrList(c.link, unix.AF_INET)
	for _, a := range addrs { // for the next round
		if ones, _ := a.Mask.Size(); ones == 32 {
			err = errors.Join(err, netlink.AddrDel(c.link, &a))
		}
	}
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(result))
}

func (c *crowd) open() (err error) {
	if c.link, err = netlink.LinkByName(nicLink); err != nil {
		return err
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			failed = errors.Join(unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, nicLink),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20))
		})
		return errors.Join(err, failed)
	}}
	c.conn, err = config.ListenPacket(context.Background(), "udp4", ":68")
	return err
}

func (c *crowd) listen() {
	buffer := make([]byte, 4096)
	for {
		n, _, err := c.conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		if answer, err := dhcpv4.FromBytes(buffer[:n]); err == nil {
			if m := c.by[answer.ClientHWAddr.String()]; m != nil {
				select {
				case m.answers <- answer:
				default:
				}
			}
		}
	}
}

// boot does what firmware, iPXE and again iPXE do.
func (m *stormClient) boot() error {
	began := time.Now()
	lease, err := m.dhcp(false)
	if err != nil {
		return fmt.Errorf("firmware's DHCP: %w", err)
	}
	m.stage("firmware's DHCP", began)
	m.address = lease.YourIPAddr
	// Each has its own address on the shared link.
	if err := netlink.AddrAdd(m.crowd.link, &netlink.Addr{IPNet: &net.IPNet{IP: m.address, Mask: net.CIDRMask(32, 32)}}); err != nil {
		return fmt.Errorf("address %s: %w", m.address, err)
	}
	began = time.Now()
	if n, err := m.tftp(bootFile(lease)); err != nil || n != m.crowd.order.LoaderBytes {
		return fmt.Errorf("loader: %d bytes, %w", n, err)
	}
	m.stage("loader", began)
	began = time.Now()
	lease, err = m.dhcp(true)
	if err != nil {
		return fmt.Errorf("iPXE's DHCP: %w", err)
	}
	m.stage("iPXE's DHCP", began)
	began = time.Now()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: m.address}, Timeout: time.Minute}
	transport := &http.Transport{DialContext: dialer.DialContext, DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var script strings.Builder
	if _, err := m.fetch(client, bootFile(lease), &script); err != nil {
		return fmt.Errorf("script: %w", err)
	}
	m.stage("script", began)
	for i, line := range m.artefacts(script.String()) {
		began = time.Now()
		sum := sha256.New()
		want := []string{m.crowd.order.Kernel, m.crowd.order.Initrd}[i]
		if _, err := m.fetch(client, line, sum); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		if hex.EncodeToString(sum.Sum(nil)) != want {
			return fmt.Errorf("%s: not what was sent", line)
		}
		m.stage([]string{"kernel", "initrd"}[i], began)
	}
	return nil
}

// artefacts are the URLs of kernel and initrd.
func (m *stormClient) artefacts(script string) []string {
	var urls []string
	for line := range strings.Lines(script) {
		words := strings.Fields(line)
		if len(words) > 0 && (words[0] == "kernel" || words[0] == "initrd") {
			urls = append(urls, words[slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "http://") })])
		}
	}
	return urls[:min(len(urls), 2)]
}

// errRefused: the server said NAK; a client begins anew then (RFC 2131, section 3.1).
var errRefused = errors.New("NAK")

// dhcp gets the machine's address and what to boot.
func (m *stormClient) dhcp(ipxe bool) (*dhcpv4.DHCPv4, error) {
	for range maxRetries {
		if lease, err := m.lease(ipxe); !errors.Is(err, errRefused) {
			return lease, err
		}
	}
	return nil, errRefused
}

func (m *stormClient) lease(ipxe bool) (*dhcpv4.DHCPv4, error) {
	options := []dhcpv4.Modifier{
		dhcpv4.WithHwAddr(m.mac), dhcpv4.WithBroadcast(true), dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00007:UNDI:003016")),
		dhcpv4.WithGeneric(dhcpv4.OptionClientSystemArchitectureType, []byte{0, 7}),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionBootfileName),
	}
	if ipxe {
		options = append(options, dhcpv4.WithUserClass("iPXE", false))
	}
	discover, err := dhcpv4.New(append(options, dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover))...)
	if err != nil {
		return nil, err
	}
	offer, err := m.ask(discover, dhcpv4.MessageTypeOffer)
	if err != nil {
		return nil, err
	}
	request, err := dhcpv4.New(append(options, dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithTransactionID(offer.TransactionID),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr)), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())))...)
	if err != nil {
		return nil, err
	}
	return m.ask(request, dhcpv4.MessageTypeAck)
}

func (m *stormClient) ask(request *dhcpv4.DHCPv4, kind dhcpv4.MessageType) (*dhcpv4.DHCPv4, error) {
	patience := firstRetry
	for range maxRetries {
		if _, err := m.crowd.conn.WriteTo(request.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 67}); err != nil {
			return nil, err
		}
		timeout := time.After(patience)
		for waiting := true; waiting; {
			select {
			case answer := <-m.answers:
				if answer.TransactionID == request.TransactionID && answer.MessageType() == kind {
					return answer, nil
				}
				if answer.TransactionID == request.TransactionID && answer.MessageType() == dhcpv4.MessageTypeNak {
					return nil, errRefused
				}
			case <-timeout:
				waiting = false
			}
		}
		patience *= 2
	}
	return nil, fmt.Errorf("no %s", kind)
}

// bootFile is option 67, else the field "file" (RFC 2132, section 9.5).
func bootFile(lease *dhcpv4.DHCPv4) string {
	if name := lease.BootFileNameOption(); name != "" {
		return name
	}
	return lease.BootFileName
}

// tftp fetches a loader as firmware does, with a block size that fits a frame, and tells its size.
func (m *stormClient) tftp(name string) (int, error) {
	return tftpGet(m.address, name, int(tftpPayload), 1)
}

// tftpGet is a TFTP client (RFC 1350, 2348, 7440), small because thousands run.
func tftpGet(local net.IP, name string, block, window int) (int, error) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: local})
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	options := fmt.Sprintf("%s\x00octet\x00blksize\x00%d\x00", name, block)
	if window > 1 {
		options += fmt.Sprintf("windowsize\x00%d\x00", window)
	}
	packet, to := append([]byte{0, 1}, options...), &net.UDPAddr{IP: net.ParseIP(serverAddress), Port: 69}
	buffer := make([]byte, block+4)
	total, next, held, tries, patience := 0, uint16(1), 0, 0, firstRetry
	send := true
	for {
		if send {
			if _, err := conn.WriteToUDP(packet, to); err != nil {
				return total, err
			}
			send = false
		}
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return total, err
		}
		n, from, err := conn.ReadFromUDP(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) && tries < maxRetries {
			tries, patience, send = tries+1, 2*patience, true
			continue
		}
		if err != nil {
			return total, err
		}
		to = from
		switch number := binary.BigEndian.Uint16(buffer[2:]); {
		case buffer[1] == 6:
			packet, send = []byte{0, 4, 0, 0}, true
		case buffer[1] == 3 && number == next:
			total += n - 4
			last := n-4 < block
			next++
			held++
			packet = []byte{0, 4, byte(number >> 8), byte(number)}
			send = held == window || last
			tries, patience = 0, firstRetry
			if send {
				held = 0
			}
			if last {
				_, err := conn.WriteToUDP(packet, to)
				return total, err
			}
		case buffer[1] == 5:
			return total, fmt.Errorf("refused: %q", buffer[4:n])
		}
	}
}

// fetch reads a URL to its end and keeps the longest silence.
func (m *stormClient) fetch(client *http.Client, url string, to io.Writer) (int64, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watchdog := time.AfterFunc(httpSilence, cancel)
	defer watchdog.Stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	heard := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return 0, errors.New(response.Status)
	}
	total := int64(0)
	for buffer := make([]byte, 64<<10); ; {
		n, err := response.Body.Read(buffer)
		m.silence = max(m.silence, time.Since(heard))
		heard = time.Now()
		watchdog.Reset(httpSilence)
		total += int64(n)
		if _, writeErr := to.Write(buffer[:n]); writeErr != nil {
			return total, writeErr
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}
