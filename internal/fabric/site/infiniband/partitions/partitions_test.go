package partitions

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
)

func TestTheFileIsAsOpenSMReadsIt(t *testing.T) {
	wide := site.Network{Number: 0x200}
	for i := range portsALine + 1 {
		wide.Ports = append(wide.Ports, site.Port{At: fmt.Sprintf("0002c900000%05x", i+1)})
	}
	got, err := Compose(Content{
		Marker: FirstMarker + 2, OperatorPath: "/etc/opensm/own.conf", Operator: "Default=0x7fff, ipoib: ALL=full;\nlustre=0x700: 0x0002c90000000001=full;",
		Networks: []site.Network{
			{Number: 0x10, Partition: api.Partition{IPoIB: true, MTUBytes: 4096, RateGbps: 100, ServiceLevel: 3}, Ports: []site.Port{
				{At: "0002c90000000022", Limited: true}, {At: "0002c90000000011"},
			}},
			{Number: 0x11},
			wide,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/partitions.conf"
	want, err := os.ReadFile(golden)
	if diff := cmp.Diff(string(want), got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if definitions, err := Parse(got); err != nil || len(definitions) != 6 {
		t.Errorf("it is read back as %v, %v", definitions, err)
	}
}

func TestWithoutAnOperatorsFileMembersOfTheDefaultPartitionReachOnlyTheSubnetManager(t *testing.T) {
	got, err := Compose(Content{Marker: FirstMarker})
	if err != nil || !strings.Contains(got, "\nDefault=0x7fff: ALL=limited, SELF=full;\n") || !Ours(got) {
		t.Errorf("%v:\n%s", err, got)
	}
}

func TestWhatInfiniBandHasNotIsRefused(t *testing.T) {
	port := []site.Port{{At: "0002c90000000011"}}
	for want, n := range map[string]site.Network{
		"no InfiniBand MTU has 1500 bytes": {Number: 1, Partition: api.Partition{MTUBytes: 1500}}, "no rate of 11 Gbit/s": {Number: 1, Partition: api.Partition{RateGbps: 11}},
		"service level 16": {Number: 1, Partition: api.Partition{ServiceLevel: 16}}, "0x7fff is reserved": {Number: DefaultPKey, Ports: port},
		"0x7ff0 is reserved": {Number: FirstMarker}, `port "0x2c9"`: {Number: 1, Ports: []site.Port{{At: "0x2c9"}}}, `port "0000000000000000"`: {Number: 1, Ports: []site.Port{{At: "0000000000000000"}}},
	} {
		if err := Check([]site.Network{n}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", n, err, want)
		}
	}
}

func TestAnOperatorsFileIsReadAsOpenSMDoes(t *testing.T) {
	got, err := Parse(`# A comment; with a semicolon
Default=0x7fff,ipoib:
	mgid=ff12:401b::0707,sl=1 # random IPv4 group
	ALL=full;
ShareIO = 0x80 , defmember=full : 0x123451, 0x123452; 0x8081: SELF=full, ALL_CAS=limited;
`)
	want := []Definition{
		{Name: "Default", PKey: 0x7fff, Line: 2, All: true},
		{Name: "ShareIO", PKey: 0x80, Line: 5, Ports: []uint64{0x123451, 0x123452}},
		{PKey: 0x81, Line: 5, All: true},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if diff := cmp.Diff([]int{0x80, 0x81, 0x7fff}, Keys(got)); diff != "" {
		t.Error(diff)
	}
}

func TestADamagedOperatorsFileIsRefusedWithItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"a=0x1: ALL":                             "line 1: the definition that begins there has no semicolon",
		"a=0x1: ALL;\n\nb=0x2 ALL;":              "line 3: there is no colon",
		"a: ALL;":                                "has no key",
		"a=0x10000: ALL;":                        "is not a partition key",
		"a=0x8000: ALL;":                         "is not a partition key",
		"a=0x1:\n0x1,\nn1;":                      `line 3: "n1" is neither a port GUID`,
		"a=0x1: ALL;\x00\x00":                    "line 1, character 12: it is not text",
		"a=0x1: " + strings.Repeat("0x1,", 2000): "OpenSM reads no more than 4094",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want %q", text, err, want)
		}
	}
}

func TestRoomCountsTheOperatorsPartitionsAndTheMarker(t *testing.T) {
	port := site.Port{At: "0002c90000000011"}
	networks := []site.Network{{Number: 1, Ports: []site.Port{port}}, {Number: 2, Ports: []site.Port{port}}}
	operator := []Definition{{PKey: DefaultPKey, All: true}, {PKey: 7, All: true}, {PKey: 8, Ports: []uint64{0x0002c90000000011}}}
	if err := Room(networks, operator, 1, map[string]int{port.At: 6}); err != nil {
		t.Errorf("two networks, the default partition, two of the operator's and a marker in six entries: %v", err)
	}
	if err := Room(networks, operator, 1, map[string]int{port.At: 5}); err == nil || !strings.Contains(err.Error(), "port 0002c90000000011 would be in 6 partitions, and its table has room for 5") {
		t.Errorf("in five entries: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("a=0x1,ipoib: ALL=full;\n# c\n0x2: 0x1, SELF;")
	f.Fuzz(func(t *testing.T, text string) {
		definitions, err := Parse(text)
		if err != nil {
			return
		}
		for _, d := range definitions {
			if d.PKey < 1 || d.PKey > DefaultPKey || d.Line < 1 {
				t.Errorf("%q: %+v", text, d)
			}
		}
	})
}
