package fleet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

const (
	etherBytes = 14
	ipBytes    = 20
	udpBytes   = 8
	serverPort = 67
	clientPort = 68
	// receiveBuffer holds the answers to a storm until they are read.
	receiveBuffer = 32 << 20
)

// wire is the raw socket all machines speak DHCP over.
type wire struct {
	conn *packet.Conn

	mu      sync.Mutex
	waiting map[string]chan *dhcpv4.DHCPv4 // by MAC
	closed  chan struct{}
}

func openWire(name string) (*wire, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	conn, err := packet.Listen(link, packet.Raw, unix.ETH_P_IP, nil)
	if err != nil {
		return nil, fmt.Errorf("raw frames (needs CAP_NET_RAW): %w", err)
	}
	w := &wire{conn: conn, waiting: map[string]chan *dhcpv4.DHCPv4{}, closed: make(chan struct{})}
	err = conn.SetPromiscuous(true) // the machines' MACs are not the interface's
	if raw, rawErr := conn.SyscallConn(); rawErr == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) })
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	go w.read()
	return w, nil
}

// Close ends the reading.
func (w *wire) Close() error {
	err := w.conn.Close()
	<-w.closed
	return err
}

// read hands every answer to the machine it is for.
func (w *wire) read() {
	defer close(w.closed)
	frame := make([]byte, 2048)
	for {
		n, _, err := w.conn.ReadFrom(frame)
		if err != nil {
			return
		}
		message, err := dhcpv4.FromBytes(answer(frame[:n]))
		if err != nil || message.OpCode != dhcpv4.OpcodeBootReply {
			continue
		}
		w.mu.Lock()
		channel := w.waiting[message.ClientHWAddr.String()]
		w.mu.Unlock()
		select {
		case channel <- message:
		default: // nobody waits for it, or it has more than it can read
		}
	}
}

// answer is the content of a UDP datagram from a DHCP server to a client, nil of anything else.
func answer(frame []byte) []byte {
	if len(frame) < etherBytes+ipBytes+udpBytes {
		return nil
	}
	ip := frame[etherBytes:]
	header := int(ip[0]&0xf) * 4
	if ip[0]>>4 != 4 || ip[9] != unix.IPPROTO_UDP || header < ipBytes || len(ip) < header+udpBytes {
		return nil
	}
	udp := ip[header:]
	size := int(binary.BigEndian.Uint16(udp[4:]))
	if binary.BigEndian.Uint16(udp) != serverPort || binary.BigEndian.Uint16(udp[2:]) != clientPort || size < udpBytes || size > len(udp) {
		return nil
	}
	return udp[udpBytes:size]
}

// ask broadcasts a message and waits for the first answer to it of a type, asking again each time patience ends.
func (w *wire) ask(ctx context.Context, m *dhcpv4.DHCPv4, want dhcpv4.MessageType, patience time.Duration) (*dhcpv4.DHCPv4, int, error) {
	answers := make(chan *dhcpv4.DHCPv4, 8)
	mac := m.ClientHWAddr.String()
	w.mu.Lock()
	w.waiting[mac] = answers
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.waiting, mac)
		w.mu.Unlock()
	}()
	frame := broadcast(m.ClientHWAddr, m.ToBytes())
	for try := range tries {
		if _, err := w.conn.WriteTo(frame, &packet.Addr{HardwareAddr: dhcpBroadcast()}); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return nil, try, err
		}
		patient := time.NewTimer(patience << try)
		for waiting := true; waiting; {
			select {
			case got := <-answers:
				switch {
				case got.TransactionID != m.TransactionID:
				case got.MessageType() == want:
					patient.Stop()
					return got, try, nil
				case got.MessageType() == dhcpv4.MessageTypeNak:
					patient.Stop()
					return nil, try, fmt.Errorf("%s was refused: %s", m.MessageType(), got.Message())
				}
			case <-patient.C:
				waiting = false
			case <-ctx.Done():
				patient.Stop()
				return nil, try, ctx.Err()
			}
		}
	}
	return nil, tries, fmt.Errorf("no %s to %d %s", want, tries, m.MessageType())
}

// tries is how often a machine asks for one thing.
const tries = 5

func dhcpBroadcast() net.HardwareAddr { return net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} }

// broadcast frames a client's message in UDP (RFC 768, without a checksum), IPv4 (RFC 791) and Ethernet.
func broadcast(from net.HardwareAddr, content []byte) []byte {
	frame := make([]byte, etherBytes+ipBytes+udpBytes, etherBytes+ipBytes+udpBytes+len(content))
	copy(frame, dhcpBroadcast())
	copy(frame[6:], from)
	binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IP)
	ip, udp := frame[etherBytes:etherBytes+ipBytes], frame[etherBytes+ipBytes:]
	ip[0] = 4<<4 | ipBytes/4
	binary.BigEndian.PutUint16(ip[2:], uint16(ipBytes+udpBytes+len(content)))
	ip[8], ip[9] = 64, unix.IPPROTO_UDP
	to := netip.AddrFrom4([4]byte{255, 255, 255, 255}).As4()
	copy(ip[16:], to[:])
	var sum uint32
	for i := 0; i < ipBytes; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	binary.BigEndian.PutUint16(udp, clientPort)
	binary.BigEndian.PutUint16(udp[2:], serverPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(udpBytes+len(content)))
	return append(frame, content...)
}
