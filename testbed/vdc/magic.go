package vdc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// etherTypeMagic is the EtherType of magic packets without UDP.
const etherTypeMagic = 0x0842

// magicTarget finds whom a frame wakes: a magic packet is six octets 0xff and then sixteen times the MAC of the machine, anywhere in the
// frame (AMD, "Magic Packet Technology", 20213). NICs look for it in all frames they take; this one does so in EtherType 0x0842 and UDP.
func magicTarget(frame []byte) (net.HardwareAddr, bool) {
	const header = 14
	if len(frame) < header {
		return nil, false
	}
	payload := frame[header:]
	switch binary.BigEndian.Uint16(frame[12:header]) {
	case etherTypeMagic:
	case unix.ETH_P_IP:
		const protocol = 9
		if len(payload) < 20 || payload[protocol] != unix.IPPROTO_UDP {
			return nil, false
		}
	default:
		return nil, false
	}
	const macs, size = 16, 6
	sync := bytes.Repeat([]byte{0xff}, size)
	for rest := payload; ; rest = rest[1:] {
		at := bytes.Index(rest, sync)
		if at < 0 {
			return nil, false
		}
		rest = rest[at:]
		if len(rest) < size+macs*size {
			return nil, false
		}
		mac := rest[size : 2*size]
		if bytes.Equal(rest[size:size+macs*size], bytes.Repeat(mac, macs)) {
			return net.HardwareAddr(bytes.Clone(mac)), true
		}
	}
}

// listenForMagic starts machines whose magic packet comes by on the provisioning network. Those that are on ignore it.
func (dc *DataCentre) listenForMagic(ctx context.Context) error {
	var conn *packet.Conn
	err := dc.inside.Do(func() error {
		link, err := net.InterfaceByName(provisioningBridge)
		if err != nil {
			return err
		}
		if conn, err = packet.Listen(link, packet.Raw, unix.ETH_P_ALL, nil); err != nil {
			return err
		}
		// Magic packets may be sent to the MAC of a machine that is off.
		return conn.SetPromiscuous(true)
	})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	dc.run(func() {
		frame := make([]byte, 1<<16)
		for {
			n, _, err := conn.ReadFrom(frame)
			if err != nil {
				if ctx.Err() == nil && !errors.Is(err, os.ErrClosed) {
					dc.logf("listening for magic packets: %v", err)
				}
				return
			}
			if mac, ok := magicTarget(frame[:n]); ok {
				dc.run(func() { dc.wake(mac) })
			}
		}
	})
	return nil
}

// wake starts the machine of that MAC if it is off and the link of its NIC is up.
func (dc *DataCentre) wake(mac net.HardwareAddr) {
	for _, m := range dc.machines {
		if m.MAC == mac.String() && !m.unplugged.Load() {
			dc.logf("magic packet for %s", m.Name)
			if err := dc.virt.on(m.Name); err != nil {
				dc.logf("%v", err)
			}
		}
	}
}
