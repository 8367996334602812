package fleet

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// Machine is one machine of a fleet.
type Machine struct {
	fleet *Fleet
	index int

	MAC net.HardwareAddr
	// HTTPBoot: its UEFI boots over HTTP, else over TFTP.
	HTTPBoot bool
	Hardware api.Hardware
}

// Stages is how a boot went: how long each stage took and what it moved.
type Stages struct {
	DHCP   time.Duration // the firmware's exchange
	Loader time.Duration // loader, iPXE's own exchange, script, kernel and initrd
	Kernel time.Duration // the boot agent's exchange, and its token's
	Root   time.Duration // what was read of the root
	// LoaderBytes came before the kernel ran, RootBytes after.
	LoaderBytes, RootBytes int64
	// Repeats is how often something was asked for again.
	Repeats   int
	Address   netip.Prefix
	Arguments boot.Arguments
	Welcome   boot.Welcome
	// Identity is that of the machine's node agent, where the boot gives it one.
	Identity trust.Identity
	// Instruction is what the server said last.
	Instruction boot.Instruction
}

// Total is how long the boot took.
func (s Stages) Total() time.Duration { return s.DHCP + s.Loader + s.Kernel + s.Root }

// ErrNotMeant: the server answered that this machine is not meant to boot.
var ErrNotMeant = errors.New("the machine is not meant to boot")

// Boot boots the machine from its first DHCP packet until the server has nothing more for it to do, or tells it to wait while it is in
// no boot of its own; then StageReady is reported. What was done until an error is in the stages.
func (m *Machine) Boot(ctx context.Context) (Stages, error) {
	var s Stages
	steps := []struct {
		took *time.Duration
		name string
		do   func(context.Context, *Stages) error
	}{
		{&s.Loader, "loader", m.load},
		{&s.Kernel, "kernel", m.hello},
		{&s.Root, "root", m.finish},
	}
	for _, step := range steps {
		start := time.Now()
		err := step.do(ctx, &s)
		*step.took = time.Since(start)
		if step.name == "loader" {
			s.Loader -= s.DHCP // which it begins with
		}
		if err != nil {
			return s, fmt.Errorf("machine %d (%s), %s: %w", m.index, m.MAC, step.name, err)
		}
	}
	return s, nil
}

// load is firmware and iPXE: an address, the loader, the script, kernel and initrd.
func (m *Machine) load(ctx context.Context, s *Stages) error {
	start := time.Now()
	offer, err := m.lease(ctx, s, m.firmware())
	s.DHCP = time.Since(start)
	if err != nil {
		return err
	}
	network := m.network(s)
	defer network.close()
	name := bootFile(offer)
	var n int64
	switch {
	case name == "":
		return ErrNotMeant
	case m.HTTPBoot:
		n, err = network.get(ctx, name, nil)
	default:
		n, err = network.tftp(ctx, nextServer(offer), name, &s.Repeats)
	}
	s.LoaderBytes += n
	if err != nil {
		return fmt.Errorf("fetch the loader %s: %w", name, err)
	}

	if offer, err = m.lease(ctx, s, m.iPXE()); err != nil {
		return err
	}
	kernel, initrd, err := m.script(ctx, network, bootFile(offer), s)
	if err != nil {
		return err
	}
	for _, url := range []string{kernel, initrd} {
		n, err := network.get(ctx, url, nil)
		s.LoaderBytes += n
		if err != nil {
			return fmt.Errorf("fetch %s: %w", url, err)
		}
	}
	return nil
}

// script fetches the iPXE script and takes from it what iPXE would do: kernel with its arguments, and initrd.
func (m *Machine) script(ctx context.Context, network *client, url string, s *Stages) (kernel, initrd string, err error) {
	var text strings.Builder
	if _, err := network.get(ctx, url, &text); err != nil {
		return "", "", fmt.Errorf("fetch the script %s: %w", url, err)
	}
	for line := range strings.Lines(text.String()) {
		words := strings.Fields(line)
		target := firstURL(words)
		switch {
		case len(words) == 0 || target == "":
		case words[0] == "kernel":
			kernel = target
			if s.Arguments, err = boot.ParseArguments(line); err != nil {
				return "", "", err
			}
		case words[0] == "initrd":
			initrd = target
		}
	}
	if kernel == "" || initrd == "" {
		return "", "", ErrNotMeant
	}
	return kernel, initrd, nil
}

func firstURL(words []string) string {
	for _, w := range words {
		if u, err := url.Parse(w); err == nil && u.Scheme == "http" && u.Host != "" {
			return w
		}
	}
	return ""
}

// lease is one DHCP exchange (RFC 2131, section 3.1), after which the machine has its address.
func (m *Machine) lease(ctx context.Context, s *Stages, options []dhcpv4.Modifier) (*dhcpv4.DHCPv4, error) {
	f := m.fleet
	discover, err := dhcpv4.NewDiscovery(m.MAC, options...)
	if err != nil {
		return nil, err
	}
	offer, repeats, err := f.wire.ask(ctx, discover, dhcpv4.MessageTypeOffer, f.cfg.Patience)
	s.Repeats += repeats
	if err != nil {
		return nil, err
	}
	request, err := dhcpv4.NewRequestFromOffer(offer, options...)
	if err != nil {
		return nil, err
	}
	ack, repeats, err := f.wire.ask(ctx, request, dhcpv4.MessageTypeAck, f.cfg.Patience)
	s.Repeats += repeats
	if err != nil {
		return nil, err
	}
	got, ok := netip.AddrFromSlice(ack.YourIPAddr.To4())
	mask, _ := ack.SubnetMask().Size()
	if !ok || mask == 0 {
		return nil, fmt.Errorf("the server gave the address %s with the mask %s", ack.YourIPAddr, ack.SubnetMask())
	}
	if s.Address.IsValid() && s.Address.Addr() != got {
		return nil, fmt.Errorf("the machine had the address %s and got %s in the same boot", s.Address.Addr(), got)
	}
	s.Address = netip.PrefixFrom(got, mask)
	return ack, f.join(s.Address)
}

// bootFile is what to fetch: option 67, else the field file (RFC 2132, section 9.5).
func bootFile(m *dhcpv4.DHCPv4) string {
	if name := m.BootFileNameOption(); name != "" {
		return name
	}
	return m.BootFileName
}

// nextServer is where to fetch it: siaddr, else who answered.
func nextServer(m *dhcpv4.DHCPv4) netip.Addr {
	for _, ip := range []net.IP{m.ServerIPAddr, m.ServerIdentifier()} {
		if a, ok := netip.AddrFromSlice(ip.To4()); ok && !a.IsUnspecified() {
			return a
		}
	}
	return netip.Addr{}
}

// What firmware says it is, by option 93 (RFC 4578, and IANA's list of processor architecture types).
const (
	archBIOS     = iana.Arch(0)
	archUEFI     = iana.Arch(7)
	archUEFIHTTP = iana.Arch(16)
)

// firmware is what the machine's firmware adds to its messages, as SeaBIOS' and OVMF's do.
func (m *Machine) firmware() []dhcpv4.Modifier {
	arch, class := archBIOS, "PXEClient:Arch:00000:UNDI:002001"
	switch {
	case m.HTTPBoot:
		arch, class = archUEFIHTTP, "HTTPClient:Arch:00016:UNDI:003000"
	case m.Hardware.Firmware == api.FirmwareUEFI:
		arch, class = archUEFI, "PXEClient:Arch:00007:UNDI:003000"
	}
	return []dhcpv4.Modifier{
		dhcpv4.WithBroadcast(true),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier(class)),
		dhcpv4.WithOption(dhcpv4.OptClientArch(arch)),
		dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClientNetworkInterfaceIdentifier, []byte{1, 2, 1})),
		dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClientMachineIdentifier, m.identifier())),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionTFTPServerName, dhcpv4.OptionBootfileName),
	}
}

// identifier is the UUID as PXE has it: type 0, and the first three fields little-endian (RFC 4578, section 2.3).
func (m *Machine) identifier() []byte {
	b, _ := hex.DecodeString(strings.ReplaceAll(m.Hardware.UUID, "-", "")) // Hardware writes it
	slices.Reverse(b[:4])
	slices.Reverse(b[4:6])
	slices.Reverse(b[6:8])
	return append([]byte{0}, b...)
}

// iPXE is what iPXE adds: its user class, and in option 175 that it speaks HTTP and boots Linux.
func (m *Machine) iPXE() []dhcpv4.Modifier {
	arch := archBIOS
	features := []byte{0x13, 1, 1, 0x18, 1, 1} // HTTP, bzImage
	if m.Hardware.Firmware == api.FirmwareUEFI {
		arch = archUEFI
		features = append(features, 0x24, 1, 1) // EFI
	}
	return []dhcpv4.Modifier{
		dhcpv4.WithBroadcast(true),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier(fmt.Sprintf("PXEClient:Arch:%05d:UNDI:003010", arch))),
		dhcpv4.WithOption(dhcpv4.OptClientArch(arch)),
		dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionUserClassInformation, []byte("iPXE"))),
		dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(175), features)),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionBootfileName),
	}
}

// system is what the boot agent adds: nothing that boots.
func (m *Machine) system() []dhcpv4.Modifier {
	return []dhcpv4.Modifier{dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter)}
}
