package smp

import (
	"context"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/needs"
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

// stub is a libibumad that answers nobody, and writes the requests that are sent to the file SENT.
const stub = `
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int umad_init(void) { return 0; }
int umad_open_port(const char *ca, int port) { return 3; }
int umad_register(int fd, int c, int v, unsigned char r, long *m) { return c; }
size_t umad_size(void) { return 64; }
int umad_set_addr(void *u, int lid, int qp, int sl, int qkey) { return 0; }
int umad_status(void *u) { return 0; }
void *umad_get_mad(void *u) { return (char *)u + 64; }
int umad_recv(int fd, void *u, int *length, int timeout) { return -1; }
int umad_close_port(int fd) { return 0; }
int umad_send(int fd, int agent, void *u, int length, int timeout, int retries)
{
	FILE *f = fopen(getenv("SENT"), "a");
	for (int i = 0; i < 64; i++)
		fprintf(f, "%02x", ((unsigned char *)u)[64 + i]);
	fputc('\n', f);
	return fclose(f);
}`

func TestEveryRequestHasTheKeyThatPortsAskFor(t *testing.T) {
	needs.Program(t, "cc")
	dir := t.TempDir()
	source, sent := filepath.Join(dir, "stub.c"), filepath.Join(dir, "sent")
	if err := os.WriteFile(source, []byte(stub), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", filepath.Join(dir, "libibumad.so.3"), source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program, err := Install(dir)
	if err != nil {
		t.Fatal(err)
	}
	var args string
	r := Reader{Program: program, Key: 0x1122334455667788, Run: func(ctx context.Context, program string, list ...string) *exec.Cmd {
		args = strings.Join(list, " ")
		cmd := exec.CommandContext(ctx, program, list...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "SENT="+sent)
		return cmd
	}}
	for key, want := range map[uint64]string{r.Key: "1122334455667788", 0: "0000000000000000"} {
		r.Key = key
		_ = os.Remove(sent)
		if _, err := r.Read(t.Context(), []Request{{LID: OwnPort, Attribute: AttributePortInfo}, {LID: 5, Attribute: AttributePKeyTable, Modifier: 1}}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(sent)
		lines := strings.Fields(string(text))
		if err != nil || len(lines) < 2 || strings.Contains(args, "1122334455667788") {
			t.Fatalf("sent %q by arguments %q, %v", lines, args, err)
		}
		for _, line := range lines {
			if got := line[2*24 : 2*32]; got != want { // the M_Key follows the 24 bytes of the header
				t.Errorf("a request has the M_Key %s, want %s: %s", got, want, line)
			}
		}
	}
}
