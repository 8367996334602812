package infiniband

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSettingsAreCompleted(t *testing.T) {
	got, err := Parse([]byte("mode: supervise\nmanager: {guid: \"0002c903000e0b73\", priority: 14}\n"), "/d")
	m := Manager{GUID: "0002c903000e0b73", Priority: 14}
	want := Settings{Mode: Supervise, Directory: "/d", Partitions: "/d/partitions.conf", Manager: &m, Managers: []Manager{m}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	got, err = Parse([]byte("mode: adopt\npartitions: /etc/opensm/partitions.conf\noperator: /etc/opensm/own.conf\n"), "/d")
	want = Settings{Mode: Adopt, Directory: "/d", Partitions: "/etc/opensm/partitions.conf", Operator: "/etc/opensm/own.conf"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
}

func TestSettingsOfUFM(t *testing.T) {
	got, err := Parse([]byte("backend: ufm\nufm:\n  url: https://ufm.example.com\n  ca: /etc/ufm.pem\n  credentials: /etc/ufm.secret\n  keys: 0x100-0x1ff\n"), "/d")
	want := Settings{Backend: BackendUFM, Directory: "/d", UFM: &UFM{URL: "https://ufm.example.com", CA: "/etc/ufm.pem", Credentials: "/etc/ufm.secret", Keys: "0x100-0x1ff"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
}

func TestBadSettingsAreRefusedWithTheReason(t *testing.T) {
	const manager = "manager: {guid: \"0002c903000e0b73\", priority: 1}\n"
	for text, want := range map[string]string{
		"mode: adopt\nfile: x\n":                       `unknown field "file"`,
		"partitions: /p\n":                             `mode "" is neither supervise`,
		"mode: adopt\n":                                "mode adopt needs partitions",
		"mode: supervise\n":                            "mode supervise needs manager",
		"mode: adopt\npartitions: /p\n" + manager:      "are for mode supervise",
		"mode: adopt\npartitions: p\n":                 `partitions: "p" is not an absolute path`,
		"mode: adopt\npartitions: /p\nbackend: ufm2\n": `backend "ufm2" is unknown`,
		"backend: ufm\n":                               "backend ufm needs ufm",
		"backend: ufm\nmode: adopt\nufm: {url: https://u, credentials: /c, keys: 0x100-0x1ff}\n": "are for backend opensm",
		"backend: ufm\nufm: {url: https://u, keys: 0x100-0x1ff}\n":                               "ufm needs url",
		"backend: ufm\nufm: {url: https://u, credentials: c, keys: 0x100-0x1ff}\n":               `ufm.credentials: "c" is not an absolute path`,
		"backend: ufm\nufm: {url: https://u, credentials: /c}\n":                                 "is not a range of partition keys",
		"mode: adopt\npartitions: /p\nufm: {url: https://u}\n":                                   "ufm is for backend ufm",
		"mode: adopt\npartitions: /p\nkeys: managed\n":                                           "keys: managed is for mode supervise",
		"mode: adopt\npartitions: /p\nkeys: declared\n":                                          "keys: declared is for backend ufm",
		"mode: adopt\npartitions: /p\nkeys: k\n":                                                 `keys: "k" is not an absolute path`,
		"backend: ufm\nkeys: /k\nufm: {url: https://u, credentials: /c, keys: 0x100-0x1ff}\n":    `keys: "/k" is for backend opensm`,
		"mode: adopt\npartitions: /p\nport: 2\n":                                                 "port is a port of adapter",
		"mode: supervise\nmanager: {guid: \"0x1\", priority: 1}\n":                               "a port GUID is 16 hexadecimal digits",
		"mode: supervise\nmanager: {guid: \"0002c903000e0b73\", priority: 16}\n":                 "priority 16 is not 0 to 15",
		"mode: adopt\npartitions: /p\nmanagers: [{guid: \"0000000000000000\"}]\n":                "a port GUID is 16 hexadecimal digits",
	} {
		if _, err := Parse([]byte(text), "/d"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}
