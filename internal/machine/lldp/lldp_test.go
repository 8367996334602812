package lldp

import (
	"encoding/hex"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// load reads a frame in hexadecimal, as a golden file has it; lines with # are comments.
func load(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			digits.WriteString(strings.Join(strings.Fields(line), ""))
		}
	}
	frame, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return frame
}

func TestFramesOfRealSpeakersAreRead(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]api.Neighbor{
		"lldpd.hex":     {Chassis: "02:00:00:00:00:02", Port: "02:00:00:00:00:02", System: "leaf-7"},
		"lldpd-med.hex": {Chassis: "rack 7", Port: "Ethernet1/17", System: "leaf-7.example.net"},
	} {
		got, err := Parse(load(t, name))
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, want)
		}
	}
}

// frame is an LLDP frame with this data unit, in hexadecimal.
func frame(t *testing.T, unit string) []byte {
	t.Helper()
	data, err := hex.DecodeString(strings.ReplaceAll("0180c200000e 020000000002 88cc "+unit, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestIdentifiersAreWrittenByTheirSubtype(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, unit, chassis, port string }{
		{"MAC and interface name", "0207 04 0a0b0c0d0e0f 0405 05 65746830 0602 0078 0000", "0a:0b:0c:0d:0e:0f", "eth0"},
		{"IPv4 address and local text", "0206 05 01 0a000001 0403 07 3137 0602 0078 0000", "10.0.0.1", "17"},
		{"IPv6 address and MAC", "0212 05 02 fe800000000000000000000000000001 0407 03 0a0b0c0d0e0f 0602 0078 0000", "fe80::1", "0a:0b:0c:0d:0e:0f"},
		{"a MAC of the wrong length is shown as bytes", "0204 04 0a0b0c 0403 07 3137 0602 0078 0000", "0a0b0c", "17"},
		{"an address of no known family is shown as bytes", "0206 05 63 0a000001 0403 07 3137 0602 0078 0000", "630a000001", "17"},
		{"what a terminal would obey is left out", "0206 07 611b5b6d62 0403 07 3137 0602 0078 0000", "a[mb", "17"},
		{"no end", "0203 07 3132 0403 07 3137 0602 0078", "12", "17"},
	}
	for _, tt := range tests {
		got, err := Parse(frame(t, tt.unit))
		if err != nil || got.Chassis != tt.chassis || got.Port != tt.port {
			t.Errorf("%s: got %+v, %v", tt.name, got, err)
		}
	}
}

func TestFramesThatBreakTheStandardAreRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, unit string
		want       error
	}{
		{"empty", "", ErrBroken},
		{"no port", "0203 07 3132 0602 0078 0000", ErrBroken},
		{"port first", "0403 07 3137 0203 07 3132 0602 0078 0000", ErrBroken},
		{"no time to live", "0203 07 3132 0403 07 3137 0000", ErrBroken},
		{"an element longer than the frame", "02ff 07 3132", ErrBroken},
		{"an identifier without a value", "0201 07 0403 07 3137 0602 0078 0000", ErrBroken},
		{"a time to live of one byte", "0203 07 3132 0403 07 3137 0601 78 0000", ErrBroken},
		{"a shutdown", "0203 07 3132 0403 07 3137 0602 0000 0000", ErrShutdown},
	}
	for _, tt := range tests {
		if got, err := Parse(frame(t, tt.unit)); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %+v, %v; want %v", tt.name, got, err, tt.want)
		}
	}
	if _, err := Parse([]byte("short")); !errors.Is(err, ErrBroken) {
		t.Errorf("five bytes: got %v", err)
	}
	other := frame(t, "0203 07 3132")
	other[12], other[13] = 0x08, 0x00
	if _, err := Parse(other); !errors.Is(err, ErrBroken) {
		t.Errorf("IPv4: got %v", err)
	}
}

func TestATaggedFrameIsRead(t *testing.T) {
	t.Parallel()
	plain := frame(t, "0203 07 3132 0403 07 3137 0602 0078 0000")
	tagged := append(append(append([]byte{}, plain[:12]...), 0x81, 0x00, 0x00, 0x07), plain[12:]...)
	if got, err := Parse(tagged); err != nil || got.Port != "17" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestTheOwnAnnouncementIsAValidFrame(t *testing.T) {
	t.Parallel()
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	got, err := Parse(announcement(mac))
	if want := (api.Neighbor{Chassis: mac.String(), Port: mac.String()}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(load(f, "lldpd.hex"))
	f.Add(load(f, "lldpd-med.hex"))
	f.Add(announcement(net.HardwareAddr{2, 0, 0, 0, 0, 9}))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := Parse(data)
		if err == nil && (n.Chassis == "" || n.Port == "") {
			t.Errorf("a neighbour without a name: %+v", n)
		}
		if err != nil && n != (api.Neighbor{}) {
			t.Errorf("both a neighbour and an error: %+v, %v", n, err)
		}
	})
}
