package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Settings determine a run. As text (String, ParseSettings) they fit one environment variable.
type Settings struct {
	Seed uint64
	// Lives is how many clusters are created.
	Lives int
	// Nodes bounds the number of nodes that are always on, Boxes that of machines that are woken; 0: as drawn, at most mostNodes and mostBoxes.
	Nodes, Boxes int
	// Until is when it becomes calm at the latest; 0: some time after the last cluster was created.
	Until time.Duration
	// Kinds may happen.
	Kinds Kinds
}

// DefaultLives is how many clusters a run sees unless it says otherwise.
const DefaultLives = 30

// NewSettings are those of a whole run. Everything may happen, but for one site in eight, where nothing goes wrong: there forecasts hold.
func NewSettings(seed uint64) Settings {
	s := Settings{Seed: seed, Lives: DefaultLives, Kinds: AllKinds()}
	if seed%8 == 0 {
		s.Kinds = QuietKinds()
	}
	return s
}

// Kind is one kind of thing that users ask for or that goes wrong.
type Kind uint8

// Kinds is a set of kinds.
type Kinds uint64

// The kinds. What users and operators ask for comes first, then what happens by itself, then faults.
const (
	Groups Kind = iota
	Spares
	Limits
	Queues
	Priorities
	Projects
	Selectors
	Scale
	Remove
	Pause
	Extend
	Relabel
	Drain
	Quotas
	Jobs
	Machines
	Builds
	Devices
	Metal
	Forget
	Save
	Move
	Resize
	Snapshot
	Functions
	Homes
	Disks
	IOLimits
	Whole

	MemberEnds
	MemberIll
	StartFails
	CleanFails
	FreezeFails
	LateMessages
	CommitUnknown
	CrashBetweenWrites
	ClockJump
	Panic
	Blind
	AgentHangs
	Lies
	Midway
	DiskEnds

	AgentRestart
	AgentSleep
	Power
	Reinstall
	Sick
	Cut
	CutOneWay
	Reset
	LeaderCrash
	Usurp
	Deposed
	Stall
	Fabric
	BMC
	Button
	Cable
	Hang
	kinds
)

var kindNames = [kinds]string{
	"groups", "spares", "limits", "queues", "priorities", "projects", "selectors", "scale", "remove", "pause", "extend", "relabel", "drain", "quotas", "jobs", "machines", "builds", "devices", "metal", "forget", "save", "move", "resize", "snapshot", "functions", "homes", "disks", "iolimits", "whole",
	"ends", "ill", "starts", "cleans", "freezes", "late", "unknown", "between", "clock", "panic", "blind", "hangs", "lies", "midway", "diskends",
	"agent", "sleep", "power", "reinstall", "sick", "cut", "oneway", "reset", "leader", "usurp", "deposed", "stall", "fabric", "bmc", "button", "cable", "hang",
}

func (k Kind) String() string { return kindNames[k] }

// AllKinds is the set of every kind.
func AllKinds() Kinds { return 1<<kinds - 1 }

// QuietKinds is what users may ask for without disturbing forecasts.
func QuietKinds() Kinds {
	return 1<<Groups | 1<<Limits | 1<<Queues | 1<<Priorities | 1<<Projects | 1<<Selectors
}

// Has tells whether the set has the kind.
func (s Kinds) Has(k Kind) bool { return s&(1<<k) != 0 }

// Without is the set less some kinds.
func (s Kinds) Without(less ...Kind) Kinds {
	for _, k := range less {
		s &^= 1 << k
	}
	return s
}

// String names the kinds of the set.
func (s Kinds) String() string {
	var names []string
	for k := range kinds {
		if s.Has(k) {
			names = append(names, k.String())
		}
	}
	return strings.Join(names, "+")
}

// String is the settings as one word: "7", or "7/lives=12/nodes=2/until=3m0s/only=scale+power" where they are not those of a whole run.
func (s Settings) String() string {
	text := strconv.FormatUint(s.Seed, 10)
	if s.Lives != DefaultLives {
		text += fmt.Sprintf("/lives=%d", s.Lives)
	}
	if s.Nodes != 0 {
		text += fmt.Sprintf("/nodes=%d", s.Nodes)
	}
	if s.Boxes != 0 {
		text += fmt.Sprintf("/boxes=%d", s.Boxes)
	}
	if s.Until != 0 {
		text += fmt.Sprintf("/until=%s", s.Until)
	}
	if s.Kinds != NewSettings(s.Seed).Kinds {
		text += "/only=" + s.Kinds.String()
	}
	return text
}

// ParseSettings reads what String writes.
func ParseSettings(text string) (Settings, error) {
	first, rest, _ := strings.Cut(text, "/")
	seed, err := strconv.ParseUint(first, 10, 64)
	if err != nil {
		return Settings{}, fmt.Errorf("%q does not begin with a seed: %w", text, err)
	}
	s := NewSettings(seed)
	for rest != "" {
		var field string
		field, rest, _ = strings.Cut(rest, "/")
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "lives":
			s.Lives, err = strconv.Atoi(value)
		case "nodes":
			s.Nodes, err = strconv.Atoi(value)
		case "boxes":
			s.Boxes, err = strconv.Atoi(value)
		case "until":
			s.Until, err = time.ParseDuration(value)
		case "only":
			s.Kinds, err = parseKinds(value)
		default:
			err = fmt.Errorf("no such setting")
		}
		if err != nil {
			return Settings{}, fmt.Errorf("setting %q: %w", field, err)
		}
	}
	return s, nil
}

func parseKinds(text string) (Kinds, error) {
	var set Kinds
	for name := range strings.SplitSeq(text, "+") {
		at := slices.Index(kindNames[:], name)
		if at < 0 && name != "" {
			return 0, fmt.Errorf("no kind is called %q", name)
		}
		if name != "" {
			set |= 1 << at
		}
	}
	return set, nil
}
