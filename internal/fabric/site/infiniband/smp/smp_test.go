package smp

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Answers of ibsim 0.10, as nearmetal-smp wrote them.
const (
	hostInfo   = "010101010002c900002000000002c900002000000002c9000020000100400000000000a101000000000000000000000000000000000000000000000000000000"
	switchInfo = "010102240002c900001000000002c900001000000002c9000010000000080000000000a100000000000000000000000000000000000000000000000000000000"
	keyTable   = "ffff8005000700000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
	portInfo   = "0000000000000000fe80000000000000003200010050c04800000ff901021f0274520011404000080804e040000000000000201f000000000000000000300000"
	smInfo     = "0002c900002000010000000000000001000054 6e5300000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
)

func data(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return append(b, make([]byte, 64)...)[:64]
}

func TestRecordedAttributesAreDecoded(t *testing.T) {
	host, err1 := DecodeNodeInfo(data(t, hostInfo))
	leaf, err2 := DecodeNodeInfo(data(t, switchInfo))
	keys, err3 := DecodeKeys(data(t, keyTable))
	port, err4 := DecodePortInfo(data(t, portInfo))
	manager, err5 := DecodeManagerInfo(data(t, smInfo))
	for _, err := range []error{err1, err2, err3, err4, err5} {
		if err != nil {
			t.Error(err)
		}
	}
	for _, diff := range []string{
		cmp.Diff(NodeInfo{Ports: 1, NodeGUID: 0x0002c90000200000, PortGUID: 0x0002c90000200001, Room: 64, Port: 1}, host),
		cmp.Diff(NodeInfo{Switch: true, Ports: 36, NodeGUID: 0x0002c90000100000, PortGUID: 0x0002c90000100000, Room: 8}, leaf),
		cmp.Diff([]Key{{Number: 0x7fff}, {Number: 5}, {Number: 7, Limited: true}}, keys),
		cmp.Diff(PortInfo{LID: 0x32, ManagerLID: 1}, port),
		cmp.Diff(ManagerInfo{GUID: 0x0002c90000200001, Priority: 5, State: Master}, manager),
	} {
		if diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if _, err := DecodeKeys(make([]byte, 63)); err == nil {
		t.Error("a table of 63 bytes was decoded")
	}
}

func TestARequestWithoutAnAnswerIsAnError(t *testing.T) {
	answers, err := parse(strings.NewReader("2 error status 0x000c\n0 ok "+hostInfo+"\n"), 3)
	if err != nil || answers[0].Err != nil || answers[1].Err == nil || answers[2].Err == nil || answers[2].Err.Error() != "status 0x000c" {
		t.Errorf("%+v, %v", answers, err)
	}
	for _, text := range []string{"3 ok " + hostInfo, "0 ok 00", "x", "0 maybe", "-1 error x"} {
		if _, err := parse(strings.NewReader(text), 3); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

func TestTheTableOfASwitchPortIsAskedForBlockByBlock(t *testing.T) {
	want := []Request{{LID: 9, Attribute: AttributePKeyTable, Modifier: 0x50000}, {LID: 9, Attribute: AttributePKeyTable, Modifier: 0x50001}}
	if diff := cmp.Diff(want, KeyTable(9, 5, 33)); diff != "" {
		t.Error(diff)
	}
	if len(KeyTable(9, 5, 0)) != 0 {
		t.Error("a switch without tables is asked for one")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("0 ok " + hostInfo + "\n1 error no answer\n")
	f.Fuzz(func(t *testing.T, text string) {
		answers, err := parse(strings.NewReader(text), 4)
		if err != nil {
			return
		}
		for _, a := range answers {
			if (a.Err == nil) != (len(a.Data) == attributeBytes) {
				t.Errorf("%q: %+v", text, a)
			}
		}
	})
}
