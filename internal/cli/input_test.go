package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/cli"
)

// gosWords are words of Go's standard library and of libraries that users must not have to understand.
var gosWords = regexp.MustCompile(`strconv\.|ParseInt|ParseFloat|ParseBool|[^.](json|yaml): |invalid syntax|value out of range|net/http|dial (tcp|unix)|` +
	`invalid argument|unmarshal|cannot parse|time: |unknown unit|missing unit|http2|x509:|tls:|read tcp|write tcp|lookup |EOF|context deadline|` +
	`context canceled|%!|0x[0-9a-f]{6}|goroutine|panic|open DIR|stat DIR|read DIR|no such host|parse error|bare "|must be formatted|key=value|parse "|no such file|Temporary Redirect|openapi`)

// inputs are command lines with something wrong in them, words separated by spaces. DIR stands for a folder with the files of badFiles,
// <> for an empty word, and _ within <...> for a space.
var inputs = []string{
	// Numbers.
	"cluster create c9 --size 1.5", "cluster create c9 --size 99999999999999999999", "cluster create c9 --size two", "cluster create c9 --size <>",
	"cluster create c9 --size -99999999999999999999", "cluster create c9 --size 1e3", "cluster create c9 --size 0x", "cluster create c9 --size 4294967296",
	"cluster create c9 --cores 1.5", "cluster create c9 --cores -1", "cluster create c9 --cores 9999999999", "cluster create c9 --spares x",
	"cluster create c9 --spares -1", "cluster create c9 --priority high", "cluster create c9 --priority 99999999999",
	"run c1 -n abc hostname", "run c1 -n 1.5 hostname", "run c1 -n -1 hostname", "run c1 -n 99999999999999999999 hostname", "run c1 -n <> hostname",
	"run c1 -nabc hostname", "run c1 -n 4294967296 hostname",
	"cluster scale c1 --size 1.5", "cluster scale c1 --size many", "cluster scale c1 --size 99999999999999999999", "job logs j --attempt first",
	"job logs j --attempt 0", "job logs j --attempt 1.0", "project create p --shares x", "project create p --cores 1.5", "project create p --members <>",
	"project set p --clusters -1", "node enroll-token create --prefix r --uses many", "dev --nodes x", "dev --node-cores 1.5", "agent --cores x",
	"agent --keep-images 1.5", "demo mpi --pairs x", "env logs x --attempt y",
	// Yes and no.
	"cluster create c9 --egress=maybe", "cluster create c9 --queue=2", "cluster delete c1 --no-wait=perhaps", "cluster delete c1 --yes=<>",
	// Sizes.
	"cluster create c9 --memory much", "cluster create c9 --memory <>", "cluster create c9 --memory -1GiB", "cluster create c9 --memory 1.5.5GiB",
	"cluster create c9 --memory 99999999999999999999GiB", "cluster create c9 --memory 1e99GiB", "cluster create c9 --memory NaN",
	"cluster create c9 --memory Inf", "cluster create c9 --memory 512MB_", "cluster create c9 --memory 0", "project create p --memory lots",
	"agent --memory x",
	// Durations and times.
	"cluster create c9 --time-limit 99999999h", "cluster create c9 --time-limit soon", "cluster create c9 --time-limit <>", "cluster create c9 --time-limit 4",
	"cluster create c9 --time-limit -4h", "cluster create c9 --time-limit 1e9h", "cluster create c9 --time-limit 99999999999999999999d",
	"cluster create c9 --timeout soon", "cluster create c9 --timeout 10", "cluster create c9 --timeout 99999999h",
	"cluster create c9 --timeout <>", "cluster create c9 --timeout -1s", "cluster scale c1 --size 2 --timeout x", "cluster pause c1 --timeout x", "cluster extend c1 --by x",
	"cluster extend c1 --to 99999999h", "cluster extend c1 --by -1h", "cluster extend c1 --by <>", "token create --valid-for x", "token create --valid-for 99999999999h",
	"node enroll-token create --prefix r --valid-for 1x", "server --boot-deadline x", "server --boot-target 5", "usage --from yesterday",
	"usage --from 2026-13-45", "usage --to 99999999999h", "usage --from <>x", "usage --from 99999999-01-01", "node power on n1 --wait --timeout x",
	"usage --period year", "usage --by planet", "usage -o xml",
	// Labels and the like.
	"cluster create c9 --label a", "cluster create c9 --label =", "cluster create c9 --label a=b,\"c", "cluster create c9 --node-selector x",
	"cluster create c9 --label <>", "cluster create c9 --label a=<" + strings.Repeat("x", 300) + ">", "run c1 --env X hostname", "run c1 --env =1 hostname", "run c1 --env <A\"=1> hostname",
	"agent --label x", "node power off --selector x", "cluster label c1 =", "cluster label c1 a", "cluster label c1 <>",
	// Names.
	"cluster show .", "cluster show ..", "cluster show a.b.c", "cluster show /", "cluster show <a_b>", "cluster show %", "cluster show %2e", "cluster show ?x", "cluster show #",
	"cluster show \x01", "cluster show \xff", "cluster show é", "cluster show <>", "cluster show " + strings.Repeat("x", 300), "cluster show c1/", "cluster show c1/../c1",
	"cluster show default.", "cluster show .c1", "cluster events .", "cluster explain .", "cluster delete . --yes", "cluster delete .. --yes", "cluster pause .",
	"cluster extend . --by 1h", "cluster label . a=b", "cluster scale . --size 2", "cluster ssh .", "run . hostname", "run <> hostname", "run .. hostname", "run c1/x hostname",
	"cluster create . --no-wait", "cluster create <a_b> --no-wait", "cluster create \xff", "cluster create <>", "cluster create é", "cluster create c9 --project .",
	"cluster create c9 --env .", "cluster create c9 --env <>", "cluster create c9 --stack <>", "cluster create c9 --project <a_b>",
	"cluster create c9 --network <>", "cluster create c9 --network a,b", "cluster create c9 --network c1:a", "cluster create c9 --network a --network a",
	"network show .", "network show c1:", "network show :a", "network show c1:a:b", "network show <>", "network show <a_b>",
	"job show .", "job show ..", "job logs .", "job logs /", "job cancel .", "job show <>", "job list --cluster .", "node show .", "node show ..", "node show /",
	"node drain .", "node undrain ..", "node forget .", "node console .", "node events .", "env show .", "env show ..", "env delete .", "project show .", "project delete .",
	"project create .", "project create <>", "token delete .", "token revoke .", "node enroll-token delete .", "node inspect .", "node remove .", "node set . --labels a=b",
	"env build .", "env check .", "env logs .", "cluster forward . 22", "cluster forward c1 x:y", "cluster forward c1 99999999999999999999", "cluster connect . .", "cp .:x y",
	"cp x", "cp <> c1:", "completion csh", "completion <>",
	"cluster resize", "cluster resize c1", "cluster resize c1 --cores 0", "cluster resize c1 --cores x", "cluster resize c1 --memory x", "cluster resize c1 --memory 0",
	"cluster resize c1 --disk -1GiB", "cluster resize c1 --cores 2 --reboot --no-wait", "cluster resize . --cores 2", "cluster resize c1 --cores 2 --group <>",
	// Commands of jobs.
	"run c1 -- <>", "run c1 --", "run c1", "run c1 --dir x hostname", "run c1 --failure-signal XX hostname", "run c1 --failure-signal 99999999999999999999 hostname",
	"run c1 --requeue=x hostname", "run c1 -- \x00", "run c1 -- \xff", "run c1 --env A=\xff hostname",
	// Files.
	"cluster create -f DIR/binary", "cluster create -f DIR/tab.yaml", "cluster create -f DIR/half.json", "cluster create -f DIR/empty.yaml", "cluster create -f DIR",
	"cluster create -f DIR/missing.yaml", "cluster create -f <>", "cluster create -f DIR/list.yaml", "cluster create -f DIR/number.json", "cluster create -f DIR/word.yaml",
	"cluster create -f DIR/types.yaml", "cluster create -f DIR/types.json", "cluster create -f DIR/deep.json", "cluster create -f DIR/two.yaml", "cluster create -f DIR/alias.yaml",
	"cluster create -f DIR/huge.json", "cluster create -f DIR/duration.yaml", "cluster create -f DIR/bom.json", "cluster create -f DIR/trailing.json", "cluster create -f DIR/size.yaml",
	"cluster create -f DIR/quote.yaml", "cluster create -f DIR/twice.yaml", "cluster create -f DIR/twice.json", "cluster create -f DIR/null.json", "cluster create -f DIR/large.yaml",
	"cluster create -f DIR/binary.json", "cluster create -f DIR/binary.yaml", "cluster create -f /dev/null", "cluster create -f -", "cluster create -f DIR/locked/x",
	"cluster apply -f DIR/binary", "cluster apply -f DIR", "cluster apply -f DIR/missing", "cluster apply -f DIR/tab.yaml", "cluster apply", "env build DIR/binary", "env build DIR/tab.yaml",
	"env build DIR", "env build DIR/missing.yaml", "env build <>", "node enroll n9 --mac x", "node enroll n9 --mac <>", "node enroll n9 -f DIR/binary", "node enroll -f DIR/tab.yaml",
	"node enroll n9 --mac 02:00:00:00:00:01 --power ipmi --bmc x --bmc-user u --bmc-password-file DIR/missing",
	"node enroll n9 --mac 02:00:00:00:00:01 --power ipmi --bmc x --bmc-user u --bmc-password-file DIR",
	"node enroll n9 --mac 02:00:00:00:00:01 --power ipmi --bmc <a_b> --bmc-user u --bmc-password-file /dev/null",
	"node enroll n9 --mac 02:00:00:00:00:01 --power redfish --bmc http://%zz --bmc-user u --bmc-password-file /dev/null",
	"node enroll n9 --mac 02:00:00:00:00:01 --console x", "node enroll n9 --mac 02:00:00:00:00:01 --console tcp://:99999999",
	"node enroll n9 --mac 02:00:00:00:00:01 --firmware coreboot", "node enroll n9 --mac 02:00:00:00:00:01 --power steam",
	// The way to the server.
	"cluster list --addr x", "cluster list --addr <>x:", "cluster list --addr :1", "cluster list --addr 127.0.0.1:x", "cluster list --addr 127.0.0.1:99999",
	"cluster list --addr https://", "cluster list --addr https://%zz:1", "cluster list --addr ftp://h:1", "cluster list --addr unix:", "cluster list --addr unix:DIR/none.sock",
	"cluster list --addr unix:DIR/binary", "cluster list --addr unix:DIR", "cluster list --addr 127.0.0.1:1", "cluster list --addr nowhere.invalid:1", "cluster list --addr [::1:1",
	"cluster list --addr <a_b:1>", "cluster list --token-file DIR/missing", "cluster list --token-file DIR", "cluster list --token-file DIR/binary", "cluster list --token-file DIR/empty.yaml",
	// The programs that run for long.
	"agent --name N_1", "agent --server x", "agent --server h:99999999", "server --listen x", "server --listen 127.0.0.1:x", "server --listen 127.0.0.1:99999999",
	"server --provision x", "server --log-level x", "server --log-format x", "dev --listen :99999999", "agent --fabric-address x", "agent --underlay x",
}

// badFiles are the files that inputs name.
var badFiles = map[string]string{
	"binary": "\x7fELF\x02\x01\x01\x00\x00\xff\xfe\x80", "binary.json": "\x00\x01\x02{", "binary.yaml": "name: \x00\xff\xfe", "tab.yaml": "name: c9\n\tsize: 2\n",
	"half.json": `{"name": "c9", "size":`, "empty.yaml": "", "list.yaml": "- a\n- b\n", "number.json": "12", "word.yaml": "hello", "types.yaml": "name: c9\nsize: two\ncores: [1]\n",
	"types.json": `{"name": 5, "size": "2", "egress": "yes", "labels": [1], "groups": {}}`, "deep.json": strings.Repeat("[", 20000), "two.yaml": "name: a\n---\nname: b\n",
	"alias.yaml": "a: &a [*a]\nname: c9\n", "huge.json": `{"name": "c9", "size": 1e400, "cores": 99999999999999999999}`, "duration.yaml": "name: c9\ntime_limit: soon\n",
	"bom.json": "\xef\xbb\xbf{\"name\": \"c9\", \"sise\": 1}", "trailing.json": `{"name": "c9"} {}`, "size.yaml": "name: c9\nmemory: 512 parsecs\nsize: 1.5\n",
	"quote.yaml": "name: \"c9\nsize: 2", "twice.yaml": "name: a\nname: b\n", "twice.json": `{"name": "a", "name": "b", "size": }`, "null.json": "null",
	"large.yaml": "name: c9 # " + strings.Repeat("x", 2<<20),
}

// TestNoInputIsAnsweredInTheWordsOfGo gives the command line every kind of wrong input. Each is refused with a sentence of this program's.
func TestNoInputIsAnsweredInTheWordsOfGo(t *testing.T) {
	s := readySite(t)
	dir := t.TempDir()
	for name, text := range badFiles {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sh := viaTCP(s)
	for _, line := range inputs {
		args := strings.Fields(line)
		for i, arg := range args {
			arg = strings.ReplaceAll(arg, "DIR", dir)
			if strings.Contains(arg, "<") {
				arg = strings.NewReplacer("<", "", ">", "", "_", " ").Replace(arg)
			}
			args[i] = arg
		}
		r := sh.run(t, args...)
		if os.Getenv("SHOW") != "" {
			t.Logf("%.100q -> %d %.400s", line, r.code, r.err)
		}
		if r.code == cli.ExitOK || r.code == cli.ExitInterrupted || !strings.HasPrefix(r.err, "Error: ") {
			t.Errorf("%.100q is accepted, or refused without a word: exit code %d, %s%s", line, r.code, r.out, r.err)
		}
		said := strings.NewReplacer(dir, "DIR").Replace(r.err)
		if words := gosWords.FindString(said); words != "" {
			t.Errorf("%.100q is answered in the words of a library (%q): %.400s", line, words, said)
		}
	}
}
