package bootagent

import (
	"encoding/hex"
	"net"
	"testing"

	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

func TestOnlyAnInterfaceThatIsAddedIsSetUp(t *testing.T) {
	const at = "/devices/pci0000:00/0000:01:00.0/net/eth0"
	for name, c := range map[string]struct{ event, want string }{
		"an added interface":   {"add@" + at + "\x00ACTION=add\x00SUBSYSTEM=net\x00INTERFACE=eth0\x00", "eth0"},
		"a removed interface":  {"remove@" + at + "\x00ACTION=remove\x00SUBSYSTEM=net\x00INTERFACE=eth0\x00", ""},
		"a renamed interface":  {"move@" + at + "\x00ACTION=move\x00SUBSYSTEM=net\x00INTERFACE=eth0\x00", ""},
		"another added device": {"add@/devices/system/cpu/cpu3\x00ACTION=add\x00SUBSYSTEM=cpu\x00", ""},
		"no event":             {"", ""},
	} {
		if got := newNIC([]byte(c.event)); got != c.want {
			t.Errorf("%s: %q is set up, want %q", name, got, c.want)
		}
	}
}

func TestAnInterfaceIsKnownByItsMACOrItsGUID(t *testing.T) {
	// An IPoIB address: reserved octet, queue pair number, and a GID, which ends with the GUID (RFC 4391, section 9.1.1).
	ipoib, err := hex.DecodeString("80000048" + "fe80000000000000" + "0e6d000000000003")
	if err != nil {
		t.Fatal(err)
	}
	ethernet := net.HardwareAddr{0x02, 0x6e, 0, 1, 0, 2}
	for name, c := range map[string]struct {
		nic     guestlink.Interface
		address net.HardwareAddr
		want    bool
	}{
		"MAC":                  {guestlink.Interface{MAC: "02:6e:00:01:00:02"}, ethernet, true},
		"another MAC":          {guestlink.Interface{MAC: "02:6e:00:01:00:03"}, ethernet, false},
		"GUID":                 {guestlink.Interface{MAC: "02:6e:00:01:00:02", GUID: "0e6d000000000003"}, ipoib, true},
		"another GUID":         {guestlink.Interface{GUID: "0e6d000000000004"}, ipoib, false},
		"GUID and an Ethernet": {guestlink.Interface{MAC: "02:6e:00:01:00:02", GUID: "0e6d000000000003"}, ethernet, false},
	} {
		if got := c.nic.IsOf(c.address); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
