package vm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/serialconsole"
)

// probePause is between two attempts at a probe, probeTime bounds one.
const (
	probePause = time.Second
	probeTime  = 3 * time.Second
)

// AwaitReady waits until the guest of a running member answers its probe, from the start of its machine at most as long as the probe says.
func (d *Driver) AwaitReady(ctx context.Context, id string) error {
	r, err := d.recall(id)
	switch {
	case err != nil:
		return fmt.Errorf("probing member %q: %w", id, err)
	case r.Foreign == nil:
		return driver.ErrSpeaks
	case r.Ready:
		return nil
	}
	probe := r.Foreign.Probe
	bounded, cancel := context.WithDeadline(ctx, r.StartedAt.Add(time.Duration(probe.Timeout)))
	defer cancel()
	if _, err := d.console(id); err != nil {
		return err
	}
	last, done := d.untilProbed(bounded, id, r)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case !done:
		return fmt.Errorf("its probe (%s) did not succeed within %s: %w; its console showed last: %s", probeText(probe), time.Duration(probe.Timeout), last, d.printed(id))
	}
	// What the console showed is not shown again: an agent that starts anew must know.
	r.Ready = true
	if r2, err := d.recall(id); err != nil || r2.Member.Assignment.ID != id {
		return fmt.Errorf("probing member %q: it is gone: %w", id, err)
	}
	return d.writeRecord(id, r)
}

// untilProbed probes until that succeeds or ctx ends; last is why it has not.
func (d *Driver) untilProbed(ctx context.Context, id string, r record) (last error, done bool) {
	ticker := time.NewTicker(probePause)
	defer ticker.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, probeTime)
		err := d.probe(attempt, id, r)
		cancel()
		if err == nil {
			return nil, true
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return last, false
		case <-ticker.C:
		}
	}
}

// probeText says what a probe is.
func probeText(p api.Probe) string {
	switch {
	case p.Console != "":
		return fmt.Sprintf("%q on the serial console", p.Console)
	case p.TCP != 0:
		return fmt.Sprintf("TCP port %d", p.TCP)
	case p.Ping:
		return "ping"
	default:
		return "SSH"
	}
}

// probe tries once, past the network.
func (d *Driver) probe(ctx context.Context, id string, r record) error {
	p := r.Foreign.Probe
	if p.Console != "" {
		if !bytes.Contains(serialconsole.SinceStart(d.path(id, fileConsoleLog)), []byte(p.Console)) {
			return errors.New("the text was not there")
		}
		return nil
	}
	if p.Ping {
		return d.ping(ctx, id, r.Member)
	}
	port := p.TCP
	if p.SSH {
		port = 22
	}
	conn, err := d.dialForeign(ctx, id, r.Member, port)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if !p.SSH {
		return nil
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	line, err := bufio.NewReaderSize(conn, 256).ReadSlice('\n')
	if !bytes.HasPrefix(line, []byte("SSH-")) { // RFC 4253, section 4.2
		return fmt.Errorf("port 22 took a connection, and no SSH server spoke: %w", errors.Join(err))
	}
	return nil
}

// doorOf opens the door to a member's guest.
func (d *Driver) doorOf(id string, m driver.Member) (*door, func(), error) {
	a := &m.Assignment
	network := m.Networks[0]
	if p := fabric.PortOf(a, 0); p.OnFunction() {
		return nil, nil, fmt.Errorf("its node does not see the traffic of %s; probe the member by its serial console", p.Function)
	}
	return d.doors.use(id, fabric.TAP(fabric.PortOf(a, 0)).At, doorAddress{
		address: netip.PrefixFrom(network.Gateway, network.Prefix.Bits()), mac: fabric.GatewayMAC(network.Index),
	})
}

// dialForeign connects to a TCP port of a guest without an agent.
func (d *Driver) dialForeign(ctx context.Context, id string, m driver.Member, port int) (net.Conn, error) {
	way, shut, err := d.doorOf(id, m)
	if err != nil {
		return nil, err
	}
	conn, err := way.dial(ctx, netip.AddrPortFrom(m.Assignment.Address(), uint16(port)))
	if err != nil {
		shut()
		return nil, err
	}
	return throughDoor{conn, shut}, nil
}

// ping sends an ICMP echo request (RFC 792) and waits for its reply.
func (d *Driver) ping(ctx context.Context, id string, m driver.Member) error {
	way, shut, err := d.doorOf(id, m)
	if err != nil {
		return err
	}
	defer shut()
	conn, err := way.packets()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	address := &net.IPAddr{IP: m.Assignment.Address().AsSlice()}
	if _, err := conn.WriteTo(echoRequest(), address); err != nil {
		return err
	}
	answer := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(answer)
		if err != nil {
			return fmt.Errorf("no reply: %w", err)
		}
		if n >= 8 && answer[0] == 0 && from.String() == address.String() && binary.BigEndian.Uint16(answer[4:]) == echoID {
			return nil
		}
	}
}

// echoID tells the probe's requests from others.
const echoID = 0x6e6d

func echoRequest() []byte {
	p := make([]byte, 8)
	p[0] = 8
	binary.BigEndian.PutUint16(p[4:], echoID)
	sum := uint32(p[0])<<8 + echoID
	binary.BigEndian.PutUint16(p[2:], ^uint16(sum+sum>>16))
	return p
}
