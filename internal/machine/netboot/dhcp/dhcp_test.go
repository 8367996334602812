package dhcp

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/loaders"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	known    = "02:00:00:00:00:01"
	second   = "02:00:00:00:00:02" // another NIC of the same machine
	idle     = "02:00:00:00:00:03" // a machine that is not meant to boot
	stranger = "02:00:00:00:00:99"
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func now() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// view is a network with a machine that boots, one that does not, and strangers.
func view() View {
	n1 := &netboot.Machine{
		Name: "n1", MAC: known, Address: ip("10.77.1.1"),
		Boot: &netboot.Boot{Machine: "uid-1", Generation: 7, Purpose: api.BootEnvironment, Architecture: "x86_64"},
	}
	n2 := &netboot.Machine{Name: "n2", MAC: idle, Address: ip("10.77.1.2")}
	network := netboot.Network{
		Interface: "boot0", Address: netip.MustParsePrefix("10.77.0.1/16"), HTTPPort: 8069,
		Machines:  netboot.Range{From: ip("10.77.1.1"), To: ip("10.77.1.250")},
		Strangers: netboot.Range{From: ip("10.77.2.1"), To: ip("10.77.2.3")},
		Router:    ip("10.77.0.254"), Nameservers: []netip.Addr{ip("10.77.0.253")},
	}
	return View{
		Network: network,
		Table: &netboot.Table{
			Machines: map[string]*netboot.Machine{known: n1, second: n1, idle: n2},
			Stranger: &netboot.Boot{Purpose: api.BootEnroll, Architecture: "x86_64"},
		},
		Pool:    NewPool(network.Strangers, nil),
		Loaders: loaders.Set{"undionly.kpxe": {1}, "snponly.efi": {1}},
		Holder:  func(netip.Addr) (string, bool) { return "", false },
	}
}

// ofARM64 makes the machine that boots one of arm64, whose loader the server has.
func ofARM64(v View) View {
	n := *v.Table.Machines[known]
	boot := *n.Boot
	boot.Architecture, n.Boot = "aarch64", &boot
	v.Table.Machines[known] = &n
	v.Loaders = loaders.Set{"snponly.efi": {1}, "snponly-arm64.efi": {1}}
	return v
}

func beside(v View) View {
	v.Network.Proxy = true
	v.Network.Machines, v.Network.Strangers = netboot.Range{}, netboot.Range{}
	return v
}

// sent is a client's message; options are modifiers of the library.
func sent(mac string, kind dhcpv4.MessageType, options ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	hw, _ := net.ParseMAC(mac)
	zero := net.IPv4zero.To4()
	p := &dhcpv4.DHCPv4{
		OpCode: dhcpv4.OpcodeBootRequest, HWType: 1, TransactionID: dhcpv4.TransactionID{1, 2, 3, 4}, ClientHWAddr: hw, ClientIPAddr: zero,
		YourIPAddr: zero, ServerIPAddr: zero, GatewayIPAddr: zero, Options: dhcpv4.Options{},
	}
	p.UpdateOption(dhcpv4.OptMessageType(kind))
	for _, o := range options {
		o(p)
	}
	return p
}

func option(code uint8, value ...byte) dhcpv4.Modifier {
	return dhcpv4.WithGeneric(dhcpv4.GenericOptionCode(code), value)
}

// Firmware as it says itself.
func bios() dhcpv4.Modifier { return firmware("PXEClient:Arch:00000:UNDI:002001", 0) }
func uefi() dhcpv4.Modifier { return firmware("PXEClient:Arch:00007:UNDI:003016", 7) }
func overHTTP() dhcpv4.Modifier {
	return firmware("HTTPClient:Arch:00016:UNDI:003001", 16)
}

func firmware(class string, arch byte) dhcpv4.Modifier {
	return func(p *dhcpv4.DHCPv4) {
		option(60, []byte(class)...)(p)
		option(93, 0, arch)(p)
		option(97, append([]byte{0}, "0123456789abcdef"...)...)(p)
		option(55, 1, 3, 43, 54, 60, 66, 67, 97)(p)
	}
}

func isIPXEOf(base dhcpv4.Modifier) dhcpv4.Modifier {
	return func(p *dhcpv4.DHCPv4) {
		base(p)
		option(77, []byte("iPXE")...)(p)
		option(175, 0x13, 1, 1, 0x18, 1, 1, 0x24, 1, 1)(p)
	}
}

func TestNobodyGetsAnAddressByInformingOfIt(t *testing.T) {
	v := view()
	v.Pool.Put(api.Lease{MAC: "52:54:00:00:00:99", Address: ip("10.77.2.1"), ExpiresAt: now().Add(time.Hour)}, true, now())
	for _, tc := range []struct{ mac, has, binds string }{
		{known, "10.77.1.1", "10.77.1.1"},
		{"52:54:00:00:00:99", "10.77.2.1", "10.77.2.1"},
		{"52:54:00:00:00:99", "10.77.1.1", ""}, // the machine's, by a stranger
		{known, "10.77.3.3", ""},               // the machine's MAC, from where nobody was sent
	} {
		d := Answer(sent(tc.mac, dhcpv4.MessageTypeInform, having(tc.has)), ServerPort, v, now())
		if got := d.Address; d.Reply == nil || got.IsValid() != (tc.binds != "") || got.IsValid() && got != ip(tc.binds) {
			t.Errorf("%s informs of %s: bound to %s, want %q", tc.mac, tc.has, got, tc.binds)
		}
	}
}

func requesting(a string) dhcpv4.Modifier { return option(50, net.ParseIP(a).To4()...) }
func choosing(a string) dhcpv4.Modifier   { return option(54, net.ParseIP(a).To4()...) }

func having(a string) dhcpv4.Modifier {
	return func(p *dhcpv4.DHCPv4) { p.ClientIPAddr = net.ParseIP(a).To4() }
}

func relayed(giaddr string, circuit string) dhcpv4.Modifier {
	return func(p *dhcpv4.DHCPv4) {
		p.GatewayIPAddr = net.ParseIP(giaddr).To4()
		option(82, append([]byte{1, byte(len(circuit))}, circuit...)...)(p)
	}
}

// standard names where an option is defined.
func standard(code uint8) string {
	names := map[uint8]string{
		1: "subnet mask, RFC 2132 3.3", 3: "router, RFC 2132 3.5", 6: "name servers, RFC 2132 3.8", 28: "broadcast, RFC 2132 5.3",
		43: "vendor options, RFC 2132 8.4, PXE 2.1 table 2-1", 51: "lease seconds, RFC 2132 9.2", 53: "message type, RFC 2132 9.6",
		54: "server, RFC 2132 9.7", 58: "renewal seconds, RFC 2132 9.11", 59: "rebinding seconds, RFC 2132 9.12",
		60: "class, RFC 2132 9.13, PXE 2.1 2.2.3, UEFI 2.10 24.7", 61: "client identifier, RFC 6842", 66: "TFTP server, RFC 2132 9.4",
		67: "boot file, RFC 2132 9.5", 82: "relay agent, RFC 3046", 97: "client machine, RFC 4578 2.3", 175: "iPXE, IANA (Etherboot)",
	}
	return names[code]
}

// dump is a packet for people.
func dump(d Decision) string {
	var b strings.Builder
	if d.Keep != nil {
		fmt.Fprintf(&b, "store first: %s has %s until %s\n", d.Keep.MAC, d.Keep.Address, d.Keep.ExpiresAt.Format(time.TimeOnly))
	}
	if d.Drop != "" {
		fmt.Fprintf(&b, "forget the lease of %s\n", d.Drop)
	}
	if d.Problem != "" {
		fmt.Fprintf(&b, "problem: %s\n", d.Problem)
	}
	r := d.Reply
	if r == nil {
		return b.String() + "no reply\n"
	}
	fmt.Fprintf(&b, "reply %s xid %s flags %#04x (RFC 2131 section 2)\n", r.MessageType(), r.TransactionID, r.Flags)
	fmt.Fprintf(&b, "  ciaddr %s yiaddr %s siaddr %s giaddr %s chaddr %s\n", r.ClientIPAddr, r.YourIPAddr, r.ServerIPAddr, r.GatewayIPAddr, r.ClientHWAddr)
	fmt.Fprintf(&b, "  file %q\n", r.BootFileName)
	for code := range 255 {
		value := r.Options.Get(dhcpv4.GenericOptionCode(code))
		if value == nil {
			continue
		}
		fmt.Fprintf(&b, "  option %d (%s): %x", code, standard(uint8(code)), value)
		if printable := strings.Map(onlyPrintable, string(value)); len(printable) > 3 {
			fmt.Fprintf(&b, " %q", printable)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func onlyPrintable(r rune) rune {
	if r < ' ' || r > '~' {
		return -1
	}
	return r
}

func TestAnswersAreAsWritten(t *testing.T) {
	leased := func(v View) View {
		v.Pool.Put(api.Lease{MAC: stranger, Address: ip("10.77.2.2"), ExpiresAt: now().Add(leaseTime)}, true, now())
		return v
	}
	cases := []struct {
		name    string
		view    View
		port    uint16
		request *dhcpv4.DHCPv4
	}{
		{"bios-discover", view(), 67, sent(known, dhcpv4.MessageTypeDiscover, bios())},
		{"uefi-discover", view(), 67, sent(known, dhcpv4.MessageTypeDiscover, uefi())},
		{"uefi-request", view(), 67, sent(known, dhcpv4.MessageTypeRequest, uefi(), requesting("10.77.1.1"), choosing("10.77.0.1"))},
		{"uefi-http-discover", view(), 67, sent(known, dhcpv4.MessageTypeDiscover, overHTTP())},
		{"ipxe-discover", view(), 67, sent(known, dhcpv4.MessageTypeDiscover, isIPXEOf(uefi()))},
		{"system-discover-with-client-id", view(), 67, sent(known, dhcpv4.MessageTypeDiscover, option(61, 255, 1, 2, 3))},
		{"not-meant-to-boot-bios", view(), 67, sent(idle, dhcpv4.MessageTypeDiscover, bios())},
		{"not-meant-to-boot-http", view(), 67, sent(idle, dhcpv4.MessageTypeDiscover, overHTTP())},
		{"not-meant-to-boot-ipxe", view(), 67, sent(idle, dhcpv4.MessageTypeDiscover, isIPXEOf(bios()))},
		{"no-loader", view(), 67, sent(known, dhcpv4.MessageTypeDiscover, firmware("PXEClient:Arch:00011:UNDI:003000", 11))},
		{"arm64-discover", ofARM64(view()), 67, sent(known, dhcpv4.MessageTypeDiscover, firmware("PXEClient:Arch:00011:UNDI:003000", 11))},
		{"arm64-http-discover", ofARM64(view()), 67, sent(known, dhcpv4.MessageTypeDiscover, firmware("HTTPClient:Arch:00019:UNDI:003000", 19))},
		{"stranger-discover", view(), 67, sent(stranger, dhcpv4.MessageTypeDiscover, uefi())},
		{"stranger-request", leased(view()), 67, sent(stranger, dhcpv4.MessageTypeRequest, uefi(), requesting("10.77.2.2"), choosing("10.77.0.1"))},
		{"wrong-address", view(), 67, sent(known, dhcpv4.MessageTypeRequest, requesting("10.77.2.2"))},
		{"relayed", view(), 67, sent(known, dhcpv4.MessageTypeDiscover, uefi(), relayed("10.77.0.9", "sw1/port7"))},
		{"relay-elsewhere", view(), 67, sent(known, dhcpv4.MessageTypeDiscover, uefi(), relayed("10.99.0.9", "sw1/port7"))},
		{"inform", view(), 67, sent(known, dhcpv4.MessageTypeInform, having("10.77.1.1"))},
		{"proxy-bios-discover", beside(view()), 67, sent(known, dhcpv4.MessageTypeDiscover, bios())},
		{"proxy-uefi-request-4011", beside(view()), 4011, sent(known, dhcpv4.MessageTypeRequest, uefi(), having("10.77.9.4"))},
		{"proxy-ipxe-discover", beside(view()), 67, sent(known, dhcpv4.MessageTypeDiscover, isIPXEOf(bios()))},
		{"proxy-http-discover", beside(view()), 67, sent(known, dhcpv4.MessageTypeDiscover, overHTTP())},
		{"proxy-not-meant-to-boot", beside(view()), 67, sent(idle, dhcpv4.MessageTypeDiscover, uefi())},
		{"proxy-system", beside(view()), 67, sent(known, dhcpv4.MessageTypeDiscover)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := dump(Answer(c.request, c.port, c.view, now()))
			path := filepath.Join("testdata", c.name+".golden")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("-want +got (go test -update writes it):\n%s", diff)
			}
		})
	}
}

func reply(t *testing.T, d Decision) dhcpv4.MessageType {
	t.Helper()
	if d.Reply == nil {
		return dhcpv4.MessageTypeNone
	}
	return d.Reply.MessageType()
}

func TestRequestsForOtherServersAreTheirBusiness(t *testing.T) {
	for _, kind := range []dhcpv4.MessageType{dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeDecline, dhcpv4.MessageTypeRelease} {
		d := Answer(sent(known, kind, choosing("10.77.0.53"), requesting("10.77.9.9")), 67, view(), now())
		if d.Reply != nil || d.Problem != "" || d.Drop != "" {
			t.Errorf("%s for another server: %s", kind, dump(d))
		}
	}
}

func TestStrangersAreNotAnsweredUnlessTheyMayEnrol(t *testing.T) {
	v := view()
	v.Table.Stranger = nil
	for _, kind := range []dhcpv4.MessageType{dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeInform} {
		if d := Answer(sent(stranger, kind, uefi(), requesting("10.77.2.1")), 67, v, now()); d.Reply != nil || d.Keep != nil {
			t.Errorf("%s: %s", kind, dump(d))
		}
	}
}

// A stranger that is taken in while it runs keeps its lease until it boots again; then it gets its own address and the lease is forgotten.
func TestOneBootUsesOneLease(t *testing.T) {
	v := view()
	v.Pool.Put(api.Lease{MAC: known, Address: ip("10.77.2.2"), ExpiresAt: now().Add(leaseTime)}, true, now())
	renew := sent(known, dhcpv4.MessageTypeRequest, having("10.77.2.2"))
	if d := Answer(renew, 67, v, now()); reply(t, d) != dhcpv4.MessageTypeAck || d.Address != ip("10.77.2.2") {
		t.Errorf("renewal: %s", dump(d))
	}
	d := Answer(sent(known, dhcpv4.MessageTypeDiscover, uefi()), 67, v, now())
	if d.Drop != known || !d.Reply.YourIPAddr.Equal(net.IPv4(10, 77, 1, 1)) {
		t.Errorf("the next boot: %s", dump(d))
	}
	select1 := sent(known, dhcpv4.MessageTypeRequest, requesting("10.77.2.2"), choosing("10.77.0.1"))
	if d := Answer(select1, 67, v, now()); reply(t, d) != dhcpv4.MessageTypeNak {
		t.Errorf("a late request for the stranger's address: %s", dump(d))
	}
}

func TestFirmwareLoaderAndSystemGetOneAddress(t *testing.T) {
	v := view()
	for _, who := range []dhcpv4.Modifier{bios(), isIPXEOf(bios()), option(61, 255, 9, 9, 9, 9, 0, 1), option(61, 1, 2, 0, 0, 0, 0, 99)} {
		d := Answer(sent(stranger, dhcpv4.MessageTypeDiscover, who), 67, v, now())
		if d.Keep != nil {
			v.Pool.Put(*d.Keep, false, now())
		}
		if !d.Reply.YourIPAddr.Equal(net.IPv4(10, 77, 2, 1)) {
			t.Errorf("%s", dump(d))
		}
	}
}

func TestASystemsSecondNICDoesNotTakeTheAddress(t *testing.T) {
	v := view()
	v.Holder = func(netip.Addr) (string, bool) { return known, true }
	if d := Answer(sent(second, dhcpv4.MessageTypeDiscover), 67, v, now()); d.Reply != nil {
		t.Errorf("a system's second NIC: %s", dump(d))
	}
	if d := Answer(sent(second, dhcpv4.MessageTypeDiscover, uefi()), 67, v, now()); reply(t, d) != dhcpv4.MessageTypeOffer {
		t.Errorf("firmware that tries its second NIC: %s", dump(d))
	}
}

func TestLatePacketsEndNoLease(t *testing.T) {
	v := view()
	v.Pool.Put(api.Lease{MAC: stranger, Address: ip("10.77.2.2"), ExpiresAt: now().Add(leaseTime)}, true, now())
	for name, late := range map[string]*dhcpv4.DHCPv4{
		"release of an earlier address": sent(stranger, dhcpv4.MessageTypeRelease, having("10.77.2.1"), choosing("10.77.0.1")),
		"decline of an earlier address": sent(stranger, dhcpv4.MessageTypeDecline, requesting("10.77.2.1"), choosing("10.77.0.1")),
		"release by another":            sent("02:00:00:00:00:98", dhcpv4.MessageTypeRelease, having("10.77.2.2"), choosing("10.77.0.1")),
	} {
		if d := Answer(late, 67, v, now()); d.Drop != "" || d.Declined.IsValid() || d.Problem != "" {
			t.Errorf("%s: %s", name, dump(d))
		}
	}
	if d := Answer(sent(stranger, dhcpv4.MessageTypeRelease, having("10.77.2.2"), choosing("10.77.0.1")), 67, v, now()); d.Drop != stranger {
		t.Errorf("its own release: %s", dump(d))
	}
}

func TestADeclinedAddressIsNotGivenForAWhile(t *testing.T) {
	v := view()
	v.Pool.Put(api.Lease{MAC: stranger, Address: ip("10.77.2.1"), ExpiresAt: now().Add(leaseTime)}, true, now())
	d := Answer(sent(stranger, dhcpv4.MessageTypeDecline, requesting("10.77.2.1"), choosing("10.77.0.1")), 67, v, now())
	if d.Declined != ip("10.77.2.1") || d.Drop != stranger || !strings.Contains(d.Problem, "another machine on its address 10.77.2.1") {
		t.Fatalf("decline: %s", dump(d))
	}
	v.Pool.Remove(stranger)
	v.Pool.Quarantine(d.Declined, now().Add(quarantineTime), now())
	for after, want := range map[time.Duration]netip.Addr{time.Minute: ip("10.77.2.2"), quarantineTime: ip("10.77.2.1")} {
		l, err := v.Pool.Choose(stranger, ip("10.77.2.1"), now().Add(after))
		if err != nil || l.Address != want {
			t.Errorf("after %s: %v, %v; want %s", after, l.Address, err, want)
		}
	}
}

func TestAnExhaustedRangeIsToldAndRecovers(t *testing.T) {
	p := NewPool(netboot.Range{From: ip("10.77.2.1"), To: ip("10.77.2.3")}, nil)
	take := func(mac string, at time.Time) error {
		l, err := p.Choose(mac, netip.Addr{}, at)
		if err == nil {
			p.Put(l, false, at)
		}
		return err
	}
	for i := range 3 {
		if err := take(fmt.Sprintf("02:00:00:00:01:%02x", i), now()); err != nil {
			t.Fatal(err)
		}
	}
	if err := take(stranger, now()); !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), "10.77.2.1-10.77.2.3") {
		t.Errorf("a fourth got: %v", err)
	}
	p.asked("02:00:00:00:01:00")
	if err := take(stranger, now().Add(2*offerTime)); err != nil {
		t.Errorf("offers that nobody took up stay taken: %v", err)
	}
	if _, ok := p.Of("02:00:00:00:01:00", now().Add(2*offerTime)); !ok {
		t.Error("a lease in use was taken away")
	}
	if err := take("02:00:00:00:01:09", now().Add(2*leaseTime)); err != nil {
		t.Errorf("expired leases stay taken: %v", err)
	}
}

func TestLeasesSurviveARestart(t *testing.T) {
	l := api.Lease{MAC: stranger, Address: ip("10.77.2.3"), ExpiresAt: now().Add(leaseTime)}
	old := api.Lease{MAC: second, Address: ip("10.77.2.3"), ExpiresAt: now().Add(-leaseTime)}
	p := NewPool(netboot.Range{From: ip("10.77.2.1"), To: ip("10.77.2.3")}, []api.Lease{l, old})
	if got, ok := p.Of(stranger, now()); !ok || got != l {
		t.Errorf("the lease is %v, %t", got, ok)
	}
	if _, ok := p.Of(second, now()); ok {
		t.Error("an expired lease came back")
	}
}

func TestRepliesGoWhereTheStandardSays(t *testing.T) {
	give := func(p *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 { return Answer(p, 67, view(), now()).Reply }
	fromNone := netip.MustParseAddrPort("0.0.0.0:68")
	discover := sent(known, dhcpv4.MessageTypeDiscover, uefi())
	broadcast := sent(known, dhcpv4.MessageTypeDiscover, uefi(), dhcpv4.WithBroadcast(true))
	relay := sent(known, dhcpv4.MessageTypeDiscover, uefi(), relayed("10.77.0.9", "p"))
	renew := sent(known, dhcpv4.MessageTypeRequest, having("10.77.1.1"))
	wrong := sent(known, dhcpv4.MessageTypeRequest, requesting("10.77.2.2"))
	for name, c := range map[string]struct {
		request *dhcpv4.DHCPv4
		from    netip.AddrPort
		want    string
		framed  bool
	}{
		"unicast by MAC": {discover, fromNone, "10.77.1.1:68", true},
		"broadcast flag": {broadcast, fromNone, "255.255.255.255:68", false},
		"relay":          {relay, netip.MustParseAddrPort("10.77.0.9:67"), "10.77.0.9:67", false},
		"renewal":        {renew, netip.MustParseAddrPort("10.77.1.1:68"), "10.77.1.1:68", false},
		"NAK":            {wrong, fromNone, "255.255.255.255:68", false},
		"from port 4011": {renew, netip.MustParseAddrPort("10.77.1.1:4011"), "10.77.1.1:4011", false},
		"rebinding":      {renew, fromNone, "10.77.1.1:68", false},
	} {
		to := destination(c.request, give(c.request), c.from)
		if to.addr.String() != c.want || (to.mac != nil) != c.framed {
			t.Errorf("%s: to %s, framed %t; want %s, %t", name, to.addr, to.mac != nil, c.want, c.framed)
		}
	}
}

func TestADatagramIsReadAsItWasFramed(t *testing.T) {
	for _, size := range []int{0, 1, 300, 1400} {
		content := make([]byte, size)
		for i := range content {
			content[i] = byte(i * 7)
		}
		p := datagram(netip.MustParseAddrPort("10.77.0.1:67"), netip.MustParseAddrPort("10.77.1.1:68"), content)
		got, from := payload(p)
		if string(got) != string(content) || from != ip("10.77.0.1") || sum(0, p[:ipBytes]) != 0xffff {
			t.Errorf("%d bytes: %d bytes from %s", size, len(got), from)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	for _, p := range []*dhcpv4.DHCPv4{
		sent(known, dhcpv4.MessageTypeDiscover, uefi()), sent(stranger, dhcpv4.MessageTypeRequest, isIPXEOf(bios()), requesting("10.77.2.1")),
		sent(known, dhcpv4.MessageTypeDecline, relayed("10.77.0.9", "p")), sent(idle, dhcpv4.MessageTypeInform, overHTTP()),
	} {
		f.Add(p.ToBytes(), uint16(67), false)
		f.Add(p.ToBytes(), uint16(4011), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, port uint16, proxy bool) {
		request, err := dhcpv4.FromBytes(data)
		if err != nil {
			return
		}
		v := view()
		if proxy {
			v = beside(v)
		}
		d := Answer(request, port, v, now())
		if d.Reply == nil {
			return
		}
		content := d.Reply.ToBytes()
		if back, err := dhcpv4.FromBytes(content); err != nil || back.TransactionID != request.TransactionID {
			t.Fatalf("the reply can't be read back: %v", err)
		}
		if len(content) > 1472 {
			t.Fatalf("the reply has %d bytes", len(content))
		}
		yours, given := address(d.Reply.YourIPAddr)
		if given && (proxy || !v.Network.Machines.Contains(yours) && !v.Network.Strangers.Contains(yours)) {
			t.Fatalf("address %s", yours)
		}
		if v.Network.Strangers.Contains(yours) && given && d.Keep == nil {
			t.Fatal("a stranger's address is not stored")
		}
		destination(request, d.Reply, netip.MustParseAddrPort("10.77.1.1:68"))
	})
}

func FuzzPayload(f *testing.F) {
	f.Add(datagram(netip.MustParseAddrPort("10.77.0.1:67"), netip.MustParseAddrPort("10.77.1.1:68"), []byte("content")))
	f.Fuzz(func(t *testing.T, data []byte) {
		content, from := payload(data)
		otherServer(content, from, ip("10.77.0.1"))
	})
}
