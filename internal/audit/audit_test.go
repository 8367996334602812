package audit

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
)

var (
	secret = bytes.Repeat([]byte("s"), 32)
	noon   = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
)

func open(t testing.TB, dir string, limits Limits) *Log {
	t.Helper()
	l, err := Open(dir, func(time.Time) []byte { return secret }, limits, func() time.Time { return noon }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func appendN(t testing.TB, l *Log, n int) {
	t.Helper()
	for i := range n {
		if err := l.Append(api.AuditRecord{User: fmt.Sprint("u", i%3), Action: "POST /v1/clusters", Status: 201 + 200*(i%2)}); err != nil {
			t.Fatal(err)
		}
	}
}

func verify(t testing.TB, l *Log, first, last int64, problems ...string) {
	t.Helper()
	report, err := l.Verify()
	if err != nil {
		t.Fatal(err)
	}
	if report.First != first || report.Last != last || len(report.Problems) != len(problems) {
		t.Fatalf("verified records %d to %d, problems %q; want %d to %d, %q", report.First, report.Last, report.Problems, first, last, problems)
	}
	for i, p := range problems {
		if !strings.Contains(report.Problems[i], p) {
			t.Errorf("problem %q, want %q", report.Problems[i], p)
		}
	}
}

func TestTheLogGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for round := range int64(3) {
		l := open(t, dir, DefaultLimits)
		appendN(t, l, 5)
		verify(t, l, 1, 5*(round+1))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	l := open(t, dir, DefaultLimits)
	defer l.Close()
	page, err := l.List(Filter{Limit: 4, Before: 12, User: "u1"})
	var seqs []int64
	for _, r := range page {
		seqs = append(seqs, r.Seq)
	}
	if err != nil || !slices.Equal(seqs, []int64{10, 7, 5, 2}) {
		t.Errorf("the records of u1 before 12 are %v (%v), want 10, 7, 5 and 2", seqs, err)
	}
	if page, _ := l.List(Filter{Limit: 100, Failed: true}); len(page) != 6 {
		t.Errorf("%d records failed, want 6", len(page))
	}
}

func TestFilesAreBoundedAndTheirRemovalIsRecorded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, Limits{FileBytes: 1000, Files: 3})
	appendN(t, l, 100)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, dir, Limits{FileBytes: 1000, Files: 3})
	defer l.Close()
	files, err := l.files()
	if err != nil || len(files) != 3 {
		t.Fatalf("files %q, %v; want 3", files, err)
	}
	first, err := seqOf(files[0])
	if err != nil {
		t.Fatal(err)
	}
	verify(t, l, first, l.head.Seq)
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	second, _ := seqOf(files[1])
	verify(t, l, second, l.head.Seq, "no record says that those before it were removed")
}

// edit changes the lines of the only file of a log.
func edit(t testing.TB, dir string, change func(lines []string) []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	lines := change(strings.SplitAfter(strings.TrimSuffix(string(text), "\n"), "\n"))
	if err := os.WriteFile(files[0], []byte(strings.Join(lines, "")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsChangedRemovedOrInsertedIsFound(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(lines []string) []string
		want   []string
		last   int64
	}{
		{"changed", func(l []string) []string { l[3] = strings.Replace(l[3], "u0", "u9", 1); return l }, []string{"record 4 is not what was written"}, 9},
		{"the first is changed", func(l []string) []string { l[0] = strings.Replace(l[0], "u0", "u9", 1); return l }, []string{"record 1, the first, is not"}, 9},
		{"removed", func(l []string) []string { return slices.Delete(l, 3, 4) }, []string{"record 5 follows record 3"}, 9},
		{"inserted", func(l []string) []string { return slices.Insert(l, 3, l[3]) }, []string{"record 4 follows record 4"}, 9},
		{"exchanged", func(l []string) []string { l[3], l[4] = l[4], l[3]; return l }, []string{"record 5 follows record 3", "record 4 follows record 5", "record 6 follows record 4"}, 9},
		{"no record", func(l []string) []string { return slices.Insert(l, 3, "x\n") }, []string{"line 4 is no record"}, 9},
		{"cut off", func(l []string) []string { l[6] = strings.TrimSuffix(l[6], "\n"); return l[:7] }, []string{"ends with record 7, and record 9 was written"}, 7},
	} {
		dir := t.TempDir()
		l := open(t, dir, DefaultLimits)
		appendN(t, l, 9)
		edit(t, dir, tt.change)
		t.Run(tt.name, func(t *testing.T) { verify(t, l, 1, tt.last, tt.want...) })
		_ = l.Close()
	}
}

func TestARecordOfAnotherPastIsFound(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	var fifth string
	for _, d := range []string{other, dir} { // of one site, as before and after a backup was restored
		l := open(t, d, DefaultLimits)
		defer l.Close()
		if err := l.Append(api.AuditRecord{User: d, Action: "DELETE /v1/clusters/c1"}); err != nil {
			t.Fatal(err)
		}
		appendN(t, l, 8)
		edit(t, d, func(lines []string) []string {
			if d == dir {
				lines[4] = fifth
			}
			fifth = lines[4]
			return lines
		})
		if d == dir {
			verify(t, l, 1, 9, "record 5 is not what was written", "record 6 is not what was written")
		}
	}
}

func TestAnotherSitesLogIsNotItsOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, DefaultLimits)
	appendN(t, l, 1)
	_ = l.Close()
	other, err := Open(dir, func(time.Time) []byte { return bytes.Repeat([]byte("x"), 32) }, DefaultLimits, time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	verify(t, other, 1, 1, "record 1, the first, is not what was written")
}

func TestARecordThatWasNotWrittenToItsEndIsRemovedAndThatIsRecorded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "nmaudit")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		l := open(t, dir, DefaultLimits)
		appendN(t, l, 3)
		path := l.file.Name()
		_ = l.Close()
		text, err := os.ReadFile(path)
		if err != nil {
			rt.Fatal(err)
		}
		cut := rapid.IntRange(0, len(text)).Draw(rt, "cut")
		if err := os.Truncate(path, int64(cut)); err != nil {
			rt.Fatal(err)
		}
		whole := int64(bytes.Count(text[:cut], []byte{'\n'}))
		torn := cut > 0 && text[cut-1] != '\n'
		l = open(t, dir, DefaultLimits)
		defer l.Close()
		appendN(t, l, 1)
		want := whole + 1
		if torn {
			want++
		}
		report, err := l.Verify()
		if err != nil || report.Last != want || len(report.Problems) > 0 {
			rt.Fatalf("cut at %d: verified up to %d, %q, %v; want %d", cut, report.Last, report.Problems, err, want)
		}
	})
}

func TestWhatCanNotBeWrittenIsCounted(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir(), DefaultLimits)
	defer l.Close()
	appendN(t, l, 1)
	for range 2 {
		if l.Append(api.AuditRecord{Detail: strings.Repeat("x", lineBytes)}) == nil {
			t.Fatal("a record without end was written")
		}
	}
	appendN(t, l, 2)
	verify(t, l, 1, 3)
	if report, _ := l.Verify(); report.Lost != 2 {
		t.Errorf("%d records are missing, want 2", report.Lost)
	}
}

func TestARecordIsOnTheDiskOnceTheLogIsClosed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, Limits{FileBytes: 1, Files: 100}) // a file for each record
	appendN(t, l, 3)
	if err := l.Close(); err != nil || l.Close() != nil {
		t.Fatal(err)
	}
	l = open(t, dir, DefaultLimits) // the newest file is empty
	defer l.Close()
	appendN(t, l, 1)
	verify(t, l, 1, 4)
}
