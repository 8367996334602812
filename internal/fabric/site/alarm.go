package site

import (
	"slices"
	"strings"
	"time"
)

// AlarmKind is what an alarm is about, in a word for programs.
type AlarmKind string

// The kinds of alarms.
const (
	// UnexpectedManager: a subnet manager that is not configured runs on the fabric.
	UnexpectedManager AlarmKind = "unexpected_manager"
	// ManagerPriority: a subnet manager has another priority than is configured.
	ManagerPriority AlarmKind = "manager_priority"
	// ManagerMissing: a configured subnet manager does not run.
	ManagerMissing AlarmKind = "manager_missing"
	NoMaster       AlarmKind = "no_master"
	SeveralMasters AlarmKind = "several_masters"
	// PartitionsEdited: others changed the file that Nearmetal writes.
	PartitionsEdited AlarmKind = "partitions_edited"
	// NotCarriedOut: the fabric takes no changes, or can't be read.
	NotCarriedOut AlarmKind = "not_carried_out"
	// SwitchSilent: a switch takes no changes, or can't be read.
	SwitchSilent AlarmKind = "switch_silent"
	// LinkErrors: a link counts too many errors.
	LinkErrors AlarmKind = "link_errors"
)

// AlarmKinds are all kinds.
func AlarmKinds() []AlarmKind {
	return []AlarmKind{UnexpectedManager, ManagerPriority, ManagerMissing, NoMaster, SeveralMasters, PartitionsEdited, NotCarriedOut, LinkErrors, SwitchSilent}
}

// Alarm is what endangers a fabric. Two alarms of one kind and subject are the same one.
type Alarm struct {
	Kind AlarmKind
	// Subject is what it is about, such as the GUID of a subnet manager's port; empty: the fabric.
	Subject string
	// Message is for people. It names no tenant.
	Message string
}

// Key tells alarms apart.
func (a Alarm) Key() string { return strings.TrimSpace(string(a.Kind) + " " + a.Subject) }

// Alarms are those of a fabric at one time.
type Alarms struct {
	// Present is in order of keys.
	Present []Alarm
	// brought: the executor has tried to bring a desired state into force. read: it has read the fabric when it last tried. counted: the errors of links
	// were counted between two surveys.
	brought, read, counted bool
}

// Over reports whether an alarm with a key is known to be over. What can't be read now ends no alarm.
func (a Alarms) Over(key string) bool {
	if slices.ContainsFunc(a.Present, func(p Alarm) bool { return p.Key() == key }) {
		return false
	}
	kind, _, _ := strings.Cut(key, " ")
	switch AlarmKind(kind) {
	case LinkErrors:
		return a.counted
	case NotCarriedOut:
		return a.brought
	default:
		return a.read
	}
}

// tolerated is how long a fabric may take no changes before that is an alarm: a subnet manager that is restarted needs seconds.
const tolerated = 15 * time.Second

// Alarms returns what was found last under this leader, and asks nobody.
func (k *Keeper) Alarms() Alarms {
	known := k.chart.Get()
	k.mu.Lock()
	defer k.mu.Unlock()
	all := Alarms{Present: slices.Clone(k.alarms), brought: k.brought, read: k.brought && k.problem == nil, counted: known.Counted}
	for _, f := range known.Faults {
		link, _, _ := strings.Cut(f.Message, ": ")
		all.Present = append(all.Present, Alarm{LinkErrors, link, f.Message})
	}
	slices.SortFunc(all.Present, func(a, b Alarm) int { return strings.Compare(a.Key(), b.Key()) })
	return all
}

// alarmsNow are those of the executor, and that it has failed for long. The lock is held.
func (k *Keeper) alarmsNow(governed []Alarm) []Alarm {
	all := slices.Clone(governed)
	if k.problem != nil && time.Since(k.failing) >= tolerated {
		all = append(all, Alarm{Kind: NotCarriedOut, Message: "the fabric is not brought to what it should be: " + k.problem.Error()})
	}
	return all
}
