"""Words of both languages, and how they inflect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GENDERS = "mfn"
SIBILANTS = ("s", "ß", "z", "x", "sch")


@dataclass(frozen=True)
class Noun:
    """A noun of both languages.

    ``gender`` is m, f or n. A ``weak`` noun takes -(e)n in all singular cases but the first.
    """

    english: str
    english_plural: str
    gender: str
    german: str
    german_plural: str
    weak: bool = False

    def inflect(self, case: str, plural: bool) -> str:
        """Return the inflected word."""
        if plural:
            is_marked = case == "dative" and self.german_plural[-1] not in "ns"
            return self.german_plural + "n" * is_marked
        if self.weak:
            ending = "n" if self.german.endswith(("e", "er", "ar")) else "en"
            return self.german if case == "nominative" else self.german + ending
        if case == "genitive" and self.gender != "f":
            return self.german + ("es" if self.german.endswith(SIBILANTS) else "s")
        return self.german


@dataclass(frozen=True)
class Verb:
    """A verb in both languages.

    ``english`` are base, third person singular, past and participle. ``german`` are infinitive,
    third person singular, preterite and participle, without the separable ``prefix``. ``auxiliary``
    forms the perfect. ``case`` is the case of its only or direct object, if it has one, and
    ``objects`` the kinds of noun that the object may be.
    """

    english: tuple[str, str, str, str]
    german: tuple[str, str, str, str]
    prefix: str = ""
    auxiliary: str = "haben"
    case: str = ""
    objects: str = ""

    @property
    def infinitive(self) -> str:
        """The German infinitive with its prefix."""
        return self.prefix + self.german[0]

    @property
    def participle(self) -> str:
        """The German participle with its prefix."""
        return self.prefix + self.german[3]

    @property
    def infinitive_with_zu(self) -> str:
        """The German infinitive with *zu*, which stands after a separable prefix."""
        return f"{self.prefix}zu{self.german[0]}" if self.prefix else f"zu {self.german[0]}"


@dataclass(frozen=True)
class Adjective:
    """An adjective of both languages; German endings are added to ``stem``."""

    english: str
    german: str
    stem: str


def _parse_rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().splitlines()]


def _parse_nouns(table: str) -> tuple[Noun, ...]:
    rows = _parse_rows(table)
    return tuple(Noun(r[0], r[1], r[2], r[3], r[4], weak=r[5:] == ["weak"]) for r in rows)


def _parse_verbs(table: str, case: str = "", objects: str = "") -> tuple[Verb, ...]:
    """Parse a table of verbs: English forms, then German forms.

    The infinitive has ``+`` after a separable prefix. ``sein`` or the kinds of object follow if
    they are not the usual ones.
    """
    verbs = []
    for row in _parse_rows(table):
        prefix, _, infinitive = row[4].rpartition("+")
        auxiliary = "sein" if "sein" in row[8:] else "haben"
        own = [word for word in row[8:] if word != "sein"]
        verbs.append(
            Verb(
                (row[0], row[1], row[2], row[3]),
                (infinitive, row[5], row[6], row[7]),
                prefix,
                auxiliary,
                case,
                own[0] if own else objects,
            )
        )
    return tuple(verbs)


def _parse_adjectives(words: str) -> tuple[Adjective, ...]:
    pairs = [word.split("=") for word in words.split()]
    return tuple(Adjective(p[0], p[1], p[2] if p[2:] else p[1]) for p in pairs)


def _parse_pairs(words: str) -> tuple[tuple[str, str], ...]:
    pairs = [entry.strip().split("=") for entry in words.strip().split(",")]
    return tuple((english, german) for english, german in pairs)


PERSONS = _parse_nouns("""
man men m Mann Männer
woman women f Frau Frauen
child children n Kind Kinder
girl girls n Mädchen Mädchen
boy boys m Junge Jungen weak
teacher teachers m Lehrer Lehrer
student students m Student Studenten weak
doctor doctors m Arzt Ärzte
neighbour neighbours m Nachbar Nachbarn weak
friend friends m Freund Freunde
sister sisters f Schwester Schwestern
brother brothers m Bruder Brüder
mother mothers f Mutter Mütter
father fathers m Vater Väter
king kings m König Könige
queen queens f Königin Königinnen
farmer farmers m Bauer Bauern weak
judge judges m Richter Richter
painter painters m Maler Maler
baker bakers m Bäcker Bäcker
sailor sailors m Matrose Matrosen weak
guest guests m Gast Gäste
hunter hunters m Jäger Jäger
daughter daughters f Tochter Töchter
son sons m Sohn Söhne
aunt aunts f Tante Tanten
uncle uncles m Onkel Onkel
baby babies n Baby Babys
thief thieves m Dieb Diebe
colleague colleagues m Kollege Kollegen weak
dog dogs m Hund Hunde
cat cats f Katze Katzen
horse horses n Pferd Pferde
bird birds m Vogel Vögel
lion lions m Löwe Löwen weak
bear bears m Bär Bären weak
mouse mice f Maus Mäuse
cow cows f Kuh Kühe
fox foxes m Fuchs Füchse
goat goats f Ziege Ziegen
""")
THINGS = _parse_nouns("""
book books n Buch Bücher
letter letters m Brief Briefe
picture pictures n Bild Bilder
table tables m Tisch Tische
chair chairs m Stuhl Stühle
lamp lamps f Lampe Lampen
clock clocks f Uhr Uhren
key keys m Schlüssel Schlüssel
car cars n Auto Autos
bicycle bicycles n Fahrrad Fahrräder
ship ships n Schiff Schiffe
apple apples m Apfel Äpfel
bread breads n Brot Brote
cake cakes m Kuchen Kuchen
egg eggs n Ei Eier
flower flowers f Blume Blumen
tree trees m Baum Bäume
stone stones m Stein Steine
coat coats m Mantel Mäntel
hat hats m Hut Hüte
shoe shoes m Schuh Schuhe
shirt shirts n Hemd Hemden
bag bags f Tasche Taschen
bottle bottles f Flasche Flaschen
glass glasses n Glas Gläser
plate plates m Teller Teller
knife knives n Messer Messer
spoon spoons m Löffel Löffel
door doors f Tür Türen
window windows n Fenster Fenster
box boxes f Kiste Kisten
newspaper newspapers f Zeitung Zeitungen
song songs n Lied Lieder
story stories f Geschichte Geschichten
map maps f Karte Karten
gift gifts n Geschenk Geschenke
ring rings m Ring Ringe
machine machines f Maschine Maschinen
wheel wheels n Rad Räder
guitar guitars f Gitarre Gitarren
ball balls m Ball Bälle
mirror mirrors m Spiegel Spiegel
carpet carpets m Teppich Teppiche
umbrella umbrellas m Regenschirm Regenschirme
telescope telescopes n Fernrohr Fernrohre
""")
PLACES = _parse_nouns("""
house houses n Haus Häuser
garden gardens m Garten Gärten
forest forests m Wald Wälder
city cities f Stadt Städte
village villages n Dorf Dörfer
school schools f Schule Schulen
kitchen kitchens f Küche Küchen
church churches f Kirche Kirchen
castle castles n Schloss Schlösser
park parks m Park Parks
station stations m Bahnhof Bahnhöfe
shop shops m Laden Läden
hotel hotels n Hotel Hotels
library libraries f Bibliothek Bibliotheken
museum museums n Museum Museen
cellar cellars m Keller Keller
room rooms n Zimmer Zimmer
office offices n Büro Büros
tower towers m Turm Türme
barn barns f Scheune Scheunen
""")
NOUNS: Mapping[str, Sequence[Noun]] = {
    "person": PERSONS,
    "thing": THINGS,
    "place": PLACES,
    "any": PERSONS + THINGS + PLACES,
}

INTRANSITIVE = _parse_verbs("""
sleep sleeps slept slept schlafen schläft schlief geschlafen
work works worked worked arbeiten arbeitet arbeitete gearbeitet
laugh laughs laughed laughed lachen lacht lachte gelacht
sing sings sang sung singen singt sang gesungen
dance dances danced danced tanzen tanzt tanzte getanzt
cry cries cried cried weinen weint weinte geweint
wait waits waited waited warten wartet wartete gewartet
cook cooks cooked cooked kochen kocht kochte gekocht
smoke smokes smoked smoked rauchen raucht rauchte geraucht
dream dreams dreamed dreamed träumen träumt träumte geträumt
stay stays stayed stayed bleiben bleibt blieb geblieben sein
die dies died died sterben stirbt starb gestorben sein
""") + _parse_verbs("""
wake wakes woke woken auf+wachen wacht wachte gewacht sein
arrive arrives arrived arrived an+kommen kommt kam gekommen sein
leave leaves left left ab+reisen reist reiste gereist sein
return returns returned returned zurück+kehren kehrt kehrte gekehrt sein
""")
MOTION = _parse_verbs("""
go goes went gone gehen geht ging gegangen sein
run runs ran run laufen läuft lief gelaufen sein
drive drives drove driven fahren fährt fuhr gefahren sein
jump jumps jumped jumped springen springt sprang gesprungen sein
climb climbs climbed climbed steigen steigt stieg gestiegen sein
crawl crawls crawled crawled kriechen kriecht kroch gekrochen sein
""")
TRANSITIVE = _parse_verbs(
    """
see sees saw seen sehen sieht sah gesehen any
find finds found found finden findet fand gefunden any
buy buys bought bought kaufen kauft kaufte gekauft
sell sells sold sold verkaufen verkauft verkaufte verkauft
love loves loved loved lieben liebt liebte geliebt any
hate hates hated hated hassen hasst hasste gehasst any
visit visits visited visited besuchen besucht besuchte besucht person
know knows knew known kennen kennt kannte gekannt any
carry carries carried carried tragen trägt trug getragen
break breaks broke broken zerbrechen zerbricht zerbrach zerbrochen
paint paints painted painted malen malt malte gemalt
draw draws drew drawn zeichnen zeichnet zeichnete gezeichnet any
steal steals stole stolen stehlen stiehlt stahl gestohlen
search searches searched searched suchen sucht suchte gesucht any
need needs needed needed brauchen braucht brauchte gebraucht any
forget forgets forgot forgotten vergessen vergisst vergaß vergessen any
lose loses lost lost verlieren verliert verlor verloren
wash washes washed washed waschen wäscht wusch gewaschen
repair repairs repaired repaired reparieren repariert reparierte repariert
admire admires admired admired bewundern bewundert bewunderte bewundert any
hear hears heard heard hören hört hörte gehört person
catch catches caught caught fangen fängt fing gefangen person
praise praises praised praised loben lobt lobte gelobt person
kiss kisses kissed kissed küssen küsst küsste geküsst person
hide hides hid hidden verstecken versteckt versteckte versteckt
describe describes described described beschreiben beschreibt beschrieb beschrieben any
choose chooses chose chosen wählen wählt wählte gewählt
throw throws threw thrown werfen wirft warf geworfen
invite invites invited invited ein+laden lädt lud geladen person
call calls called called an+rufen ruft rief gerufen person
open opens opened opened auf+machen macht machte gemacht
close closes closed closed zu+machen macht machte gemacht
fetch fetches fetched fetched ab+holen holt holte geholt
clean cleans cleaned cleaned auf+räumen räumt räumte geräumt place
watch watches watched watched an+schauen schaut schaute geschaut any
interrupt interrupts interrupted interrupted unterbrechen unterbricht unterbrach unterbrochen person
wear wears wore worn an+ziehen zieht zog gezogen
accept accepts accepted accepted an+nehmen nimmt nahm genommen
imitate imitates imitated imitated nach+ahmen ahmt ahmte geahmt person
prepare prepares prepared prepared vor+bereiten bereitet bereitete bereitet
""",
    "accusative",
    "thing",
)
DATIVE = _parse_verbs(
    """
help helps helped helped helfen hilft half geholfen
follow follows followed followed folgen folgt folgte gefolgt sein
thank thanks thanked thanked danken dankt dankte gedankt
trust trusts trusted trusted vertrauen vertraut vertraute vertraut
answer answers answered answered antworten antwortet antwortete geantwortet
forgive forgives forgave forgiven verzeihen verzeiht verzieh verziehen
resemble resembles resembled resembled ähneln ähnelt ähnelte geähnelt
congratulate congratulates congratulated congratulated gratulieren gratuliert gratulierte gratuliert
""",
    "dative",
    "person",
)
DITRANSITIVE = _parse_verbs(
    """
give gives gave given geben gibt gab gegeben
show shows showed shown zeigen zeigt zeigte gezeigt
send sends sent sent schicken schickt schickte geschickt
bring brings brought brought bringen bringt brachte gebracht
lend lends lent lent leihen leiht lieh geliehen
promise promises promised promised versprechen verspricht versprach versprochen
offer offers offered offered an+bieten bietet bot geboten
return returns returned returned zurück+geben gibt gab gegeben
""",
    "accusative",
    "thing",
)
OF_CLAUSES = _parse_verbs("""
say says said said sagen sagt sagte gesagt
know knows knew known wissen weiß wusste gewusst
believe believes believed believed glauben glaubt glaubte geglaubt
hope hopes hoped hoped hoffen hofft hoffte gehofft
tell tells told told erzählen erzählt erzählte erzählt
suspect suspects suspected suspected vermuten vermutet vermutete vermutet
""")
OF_INFINITIVES = _parse_verbs("""
try tries tried tried versuchen versucht versuchte versucht
hope hopes hoped hoped hoffen hofft hoffte gehofft
forget forgets forgot forgotten vergessen vergisst vergaß vergessen
begin begins began begun beginnen beginnt begann begonnen
plan plans planned planned planen plant plante geplant
""")
MODALS: tuple[tuple[str, str, str], ...] = (  # English; German singular and plural
    ("can", "kann", "können"),
    ("must", "muss", "müssen"),
    ("may", "darf", "dürfen"),
    ("should", "soll", "sollen"),
)

ADJECTIVES = _parse_adjectives("""
old=alt young=jung big=groß small=klein red=rot green=grün blue=blau black=schwarz white=weiß
new=neu beautiful=schön ugly=hässlich heavy=schwer cheap=billig expensive=teuer=teur
dark=dunkel=dunkl strange=seltsam quiet=still loud=laut clever=klug poor=arm rich=reich
tired=müde=müd happy=glücklich sad=traurig brave=tapfer lazy=faul friendly=freundlich
angry=böse=bös cold=kalt warm=warm round=rund broken=kaputt empty=leer dirty=schmutzig clean=sauber
famous=berühmt dangerous=gefährlich yellow=gelb narrow=schmal
""")
TIMES = _parse_pairs(
    "today=heute, yesterday=gestern, now=jetzt, often=oft, always=immer, sometimes=manchmal, "
    "every day=jeden Tag, in the evening=am Abend, soon=bald, again=wieder, "
    "on Monday=am Montag, at night=in der Nacht, in winter=im Winter, tomorrow=morgen"
)
MANNERS = _parse_pairs(
    "quickly=schnell, slowly=langsam, gladly=gern, secretly=heimlich, carefully=vorsichtig, "
    "alone=allein, well=gut, badly=schlecht, together=zusammen"
)
NUMBERS = _parse_pairs(
    "two=zwei, three=drei, four=vier, five=fünf, six=sechs, seven=sieben, ten=zehn, "
    "twelve=zwölf, many=viele, some=einige"
)
LOCATIONS: tuple[tuple[str, str], ...] = (
    ("in", "in"), ("behind", "hinter"), ("next to", "neben"), ("in front of", "vor"),
    ("under", "unter"), ("near", "bei"),
)  # fmt: skip
DIRECTIONS: tuple[tuple[str, str, str], ...] = (
    ("into", "in", "accusative"), ("to", "zu", "dative"), ("out of", "aus", "dative"),
    ("behind", "hinter", "accusative"), ("through", "durch", "accusative"),
    ("around", "um", "accusative"),
)  # fmt: skip
COMPANIONS: tuple[tuple[str, str, str], ...] = (
    ("with", "mit", "dative"), ("without", "ohne", "accusative"), ("for", "für", "accusative"),
)  # fmt: skip
CONJUNCTIONS = _parse_pairs(
    "because=weil, although=obwohl, when=wenn, before=bevor, while=während, after=nachdem"
)
