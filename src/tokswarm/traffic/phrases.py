"""Grammars of the languages that prompts are written in: patterns, and the phrases that fill them.

A pattern names its slots in braces; each slot is a list of phrases that agree with every pattern they stand in
(nouns carry their articles). The sentences are of letters, reports and requests such as people send to assistants.
"""

from typing import NamedTuple


class Grammar(NamedTuple):
    """Patterns, and what fills their slots."""

    patterns: tuple[str, ...]
    slots: dict[str, tuple[str, ...]]
    keeps_names: bool = False
    """A slot that comes twice in a pattern is filled with the same word."""


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split("/"))


ENGLISH = Grammar(
    (
        "{who} {did} {what} {when}",
        "{when_first}, {who} {did} {what}",
        "Please {task} {what} and {task} {what2} before {deadline}",
        "{who} asked whether {what} could be {done} {when}",
        "It is not clear why {what} was {done} {when}",
        "In the {place}, {who} found that {what} had been {done}",
        "{what_first} {state}, so {who} {did} {what2}",
        "We expect {what} to be {done} by {deadline}, unless {who} objects",
        "Could you {task} {what} for {who} and explain each step",
        "About {number} customers wrote that {what} {state}",
        "The report says {what} cost {number} euros, which {who} had not planned",
        "If {what} {state}, {who} will have to {task} {what2}",
        "{who} and {who2} disagree about how to {task} {what}",
        "My notes from the {place}: {what} {state}, {what2} was {done}",
    ),
    {
        "who": _list(
            "the manager/our neighbour/a young engineer/the support team/my sister/the auditor/every driver/the editor/"
            "a retired teacher/the night shift/the new tenant/our supplier/the committee/a curious student/the nurse"
        ),
        "who2": _list(
            "the lawyer/his brother/the planner/two colleagues/the owner/the head chef/her assistant/the pilot"
        ),
        "did": _list(
            "reviewed/postponed/ordered/repaired/translated/returned/measured/described/forgot/cancelled/improved/"
            "explained/signed/doubted/compared/recorded/refused/shipped"
        ),
        "task": _list(
            "summarise/check/rewrite/plan/estimate/shorten/test/compare/sort/translate/illustrate/approve/document/price"
        ),
        "what": _list(
            "the quarterly figures/an old contract/the delivery schedule/a broken heater/the second draft/the travel plan/"
            "the warranty claim/her application/the battery test/this recipe/the safety manual/a long invoice/"
            "the harvest forecast/their rental agreement/the meeting notes/the water bill/the exhibition guide/a map of the valley"
        ),
        "what2": _list(
            "the appendix/the missing pages/a shorter version/the price list/the photographs/the footnotes/the opening hours/"
            "a table of results/the seating plan/the refund"
        ),
        "what_first": _list(
            "The printer in the hall/The older bridge/The morning train/A rented van/The garden wall/The spare part/"
            "The online form/The last shipment"
        ),
        "done": _list("approved/replaced/delayed/translated/paid/moved/measured/published/opened/rejected/repeated"),
        "state": _list(
            "arrived too late/is still unfinished/does not fit/needs more work/was praised by everyone/costs less than before/"
            "fell short of the target/looks better in daylight/cannot be found"
        ),
        "when": _list(
            "last winter/on Tuesday/after the holidays/without any delay/during the storm/twice a week/in early spring/"
            "shortly before noon/over the weekend"
        ),
        "when_first": _list(
            "Two weeks ago/As usual/In the meantime/To everyone's surprise/At the end of June/For once"
        ),
        "deadline": _list(
            "Friday/the end of the month/five o'clock/the next board meeting/the first snow/her departure"
        ),
        "place": _list("basement/waiting room/workshop/archive/town hall/harbour/greenhouse/control room"),
        "number": _list("12/40/75/130/260/900/1,400/3,250"),
    },
)

GERMAN = Grammar(
    (
        "{wer} hat {was} {wann} {getan}",
        "{wann_erst} hat {wer} {was} {getan}",
        "Bitte {tun} Sie {was} und {tun} Sie {was2} bis {frist}",
        "Es ist unklar, warum {wer} {was} {getan} hat",
        "Im {ort} stellte sich heraus, dass {wer} {was} {getan} hatte",
        "{ding} {zustand}, deshalb muss {wer} {was} noch einmal {inf}",
        "Könnten Sie {was} für uns {inf} und jeden Schritt erklären",
        "Ungefähr {zahl} Kunden schrieben, dass {wer} {was} nie {getan} habe",
        "Falls {wer} {was} nicht rechtzeitig {inf} kann, melden Sie sich bitte bei der Leitung",
        "Laut Bericht kostet die Reparatur {zahl} Euro, obwohl {wer} weniger erwartet hatte",
    ),
    {
        "wer": _list(
            "die Nachbarin/der Buchhalter/unsere Werkstatt/der junge Lehrer/die Stadtverwaltung/mein Bruder/die Ärztin/"
            "der Vermieter/das Reisebüro/die Nachtschicht/der Gutachter/unser Lieferant"
        ),
        "was": _list(
            "den Mietvertrag/die Heizkostenabrechnung/das Protokoll/den zweiten Entwurf/die Lieferung/das Ersatzteil/"
            "den Fahrplan/die Versicherungspolice/das Angebot/den Reisebericht/die Gebrauchsanweisung/das Kochrezept"
        ),
        "was2": _list("die Anlage/den Preis/das Foto/die Fußnoten/den Zeitplan/die Übersicht"),
        "getan": _list(
            "geprüft/unterschrieben/übersetzt/verschoben/bezahlt/vergessen/verglichen/ergänzt/abgelehnt/gelobt"
        ),
        "inf": _list("prüfen/übersetzen/kürzen/erläutern/bestellen/vergleichen/überarbeiten/zusammenfassen"),
        "tun": _list("prüfen/kürzen/senden/ergänzen/übersetzen/vergleichen"),
        "ding": _list("Der Aufzug/Die alte Brücke/Das Formular/Der Drucker/Die Waschmaschine/Das Gartentor"),
        "zustand": _list(
            "ist seit gestern defekt/kam zu spät an/passt nicht zum Plan/wurde nie geliefert/klemmt bei Regen"
        ),
        "wann": _list("am Dienstag/im letzten Winter/vor zwei Wochen/ohne Verzögerung/kurz vor Mittag/nach den Ferien"),
        "wann_erst": _list("Gestern/Im Frühjahr/Wie üblich/Zum Glück/Vor einem Jahr/Am Wochenende"),
        "frist": _list("Freitag/Monatsende/zur nächsten Sitzung/morgen Abend/zum ersten Oktober"),
        "ort": _list("Keller/Archiv/Rathaus/Wartezimmer/Gewächshaus/Hafen"),
        "zahl": _list("12/35/80/140/260/750/1.200"),
    },
)

SPANISH = Grammar(
    (
        "{quien} {hizo} {que} {cuando}",
        "{cuando_inicio}, {quien} {hizo} {que}",
        "Por favor, {tarea} {que} y {tarea} {que2} antes de {plazo}",
        "No está claro por qué {quien} {hizo} {que}",
        "¿Podría explicar por qué {cosa} {estado}",
        "Si {cosa} {estado}, {quien} tendrá que llamar al taller",
        "Unos {numero} clientes escribieron que {cosa} {estado}",
        "El informe dice que {que} costó {numero} euros, más de lo que esperaba {quien}",
        "En {lugar}, {quien} descubrió que {cosa} {estado}",
    ),
    {
        "quien": _list(
            "la vecina/el contable/nuestro proveedor/la profesora/el ayuntamiento/mi hermano/la enfermera/el jefe de cocina/"
            "la agencia de viajes/el turno de noche/una joven ingeniera"
        ),
        "hizo": _list("revisó/firmó/tradujo/aplazó/pagó/olvidó/comparó/devolvió/describió/rechazó/mejoró"),
        "que": _list(
            "el contrato de alquiler/la factura del agua/el segundo borrador/la lista de precios/el plan de viaje/"
            "el manual de seguridad/la receta de la abuela/el pedido de madera/la guía del museo/los resultados del trimestre"
        ),
        "que2": _list("el anexo/las fotografías/el horario/una versión más corta/las notas al pie"),
        "tarea": _list("revise/resuma/traduzca/compare/ordene/prepare/corrija"),
        "cosa": _list("el ascensor/la caldera/el tren de la mañana/la impresora/el puente viejo/la última entrega"),
        "estado": _list(
            "llegó demasiado tarde/sigue sin terminar/no encaja/necesita más trabajo/cuesta menos que antes"
        ),
        "cuando": _list(
            "el martes/el invierno pasado/después de las fiestas/sin demora/dos veces por semana/antes del mediodía"
        ),
        "cuando_inicio": _list(
            "Hace dos semanas/Como siempre/Mientras tanto/Para sorpresa de todos/A finales de junio"
        ),
        "plazo": _list("el viernes/fin de mes/las cinco/la próxima reunión/su viaje"),
        "lugar": _list("el sótano/el archivo/el puerto/la sala de espera/el invernadero"),
        "numero": _list("12/35/80/140/260/750"),
    },
)

FRENCH = Grammar(
    (
        "{qui} a {fait} {quoi} {quand}",
        "{quand_debut}, {qui} a {fait} {quoi}",
        "Merci de {tache} {quoi} et de {tache} {quoi2} avant {delai}",
        "On ne sait pas pourquoi {qui} a {fait} {quoi}",
        "Pourriez-vous {tache} {quoi} et détailler chaque étape",
        "Si {chose} {etat}, il faudra prévenir l'atelier",
        "Environ {nombre} clients ont écrit que {chose} {etat}",
        "D'après le rapport, {quoi} a coûté {nombre} euros, ce que {qui} n'avait pas prévu",
        "Dans {lieu}, {qui} a remarqué que {chose} {etat}",
    ),
    {
        "qui": _list(
            "la voisine/le comptable/notre fournisseur/la mairie/mon frère/l'infirmière/le chef de cuisine/l'équipe de nuit/"
            "une jeune ingénieure/le propriétaire/l'agence de voyage"
        ),
        "fait": _list("vérifié/signé/traduit/reporté/payé/oublié/comparé/rendu/décrit/refusé/amélioré"),
        "quoi": _list(
            "le contrat de location/la facture d'eau/le deuxième brouillon/la liste des prix/le plan du voyage/"
            "le manuel de sécurité/la recette de famille/la commande de bois/le guide du musée/les chiffres du trimestre"
        ),
        "quoi2": _list("l'annexe/les photographies/les horaires/une version plus courte/les notes de bas de page"),
        "tache": _list("vérifier/résumer/traduire/comparer/classer/préparer/corriger"),
        "chose": _list("l'ascenseur/la chaudière/le train du matin/l'imprimante/le vieux pont/la dernière livraison"),
        "etat": _list(
            "est arrivé trop tard/reste à terminer/ne convient pas/demande encore du travail/coûte moins qu'avant"
        ),
        "quand": _list("mardi dernier/l'hiver dernier/après les fêtes/sans attendre/deux fois par semaine/avant midi"),
        "quand_debut": _list("Il y a deux semaines/Comme toujours/Entre-temps/À la surprise générale/Fin juin"),
        "delai": _list("vendredi/la fin du mois/cinq heures/la prochaine réunion/son départ"),
        "lieu": _list("la cave/les archives/le port/la salle d'attente/la serre"),
        "nombre": _list("12/35/80/140/260/750"),
    },
)

CHINESE = Grammar(
    (
        "{谁}{何时}{做了}{什么}。",
        "{何时}，{谁}{做了}{什么}。",
        "请{任务}{什么}，并在{期限}之前{任务}{什么二}。",
        "目前还不清楚{谁}为什么{做了}{什么}。",
        "如果{东西}{状态}，{谁}就需要重新{任务}{什么}。",
        "大约{数字}位客户来信说，{东西}{状态}。",
        "报告指出，{什么}花费了{数字}元，{谁}没有想到。",
        "能否为{谁}{任务}{什么}，并解释每一个步骤？",
    ),
    {
        "谁": _list("邻居/会计/我们的供应商/王老师/市政府/我哥哥/护士/厨师长/旅行社/夜班同事/一位年轻的工程师"),
        "做了": _list("检查了/签署了/翻译了/推迟了/支付了/忘记了/比较了/退回了/改进了/拒绝了"),
        "什么": _list("租房合同/水费账单/第二份草稿/价格表/旅行计划/安全手册/家传菜谱/木材订单/博物馆指南/季度数据"),
        "什么二": _list("附录/照片/时间表/简短的版本/脚注"),
        "任务": _list("检查/总结/翻译/比较/整理/准备/修改"),
        "东西": _list("电梯/锅炉/早班火车/打印机/那座旧桥/最后一批货物"),
        "状态": _list("到得太晚/还没有完成/不合适/还需要改进/比以前便宜/坏了两次"),
        "何时": _list("上周二/去年冬天/假期之后/昨天下午/每周两次/中午之前"),
        "期限": _list("星期五/月底/五点/下次会议/出发"),
        "数字": _list("12/35/80/140/260/750"),
    },
)

CODE = Grammar(
    (
        "def {verb}_{noun}({noun2}, {noun3}=None):\n    if {noun3} is None:\n        {noun3} = {number}\n    return {noun2}.{verb2}({noun3})\n",
        'for {noun2} in {noun}s:\n    total += {noun2}["{key}"] * {number}\n    if total > {noun3}_limit:\n        break\n',
        "class {Noun}{Role}:\n    def __init__(self, {noun2}):\n        self._{noun2} = {noun2}\n\n    def {verb}(self) -> {type}:\n        return self._{noun2}.{key}\n",
        "SELECT {key}, COUNT(*) AS {noun2}_count\nFROM {noun}s\nWHERE {key2} >= {number}\nGROUP BY {key}\nORDER BY {noun2}_count DESC;\n",
        "UPDATE {noun}s SET {key} = '{word}' WHERE {key2} = {number};\n",
        '{{\n  "{key}": "{word}",\n  "{key2}": {number},\n  "{noun}s": [{number}, {number2}]\n}}\n',
        'try:\n    {noun} = load_{noun}("{word}.json")\nexcept FileNotFoundError as error:\n    log.warning("no {noun}: %s", error)\n',
        "{noun} = [{noun2} for {noun2} in {noun3}s if {noun2}.{key} != {number}]\n",
        'async def {verb}_{noun}s(client, {noun2}):\n    response = await client.get(f"/{noun}s/{{{noun2}}}")\n    return response.json()["{key}"]\n',
        'assert {verb}_{noun}({number}) == {number2}, "{word} {noun2}"\n',
    ),
    {
        "noun": _list(
            "order/invoice/session/packet/student/account/shipment/sensor/ticket/booking/user/message/report"
        ),
        "noun2": _list("item/entry/row/node/value/record/event/parcel/line/token"),
        "noun3": _list("budget/batch/window/limit/quota/page"),
        "Noun": _list("Order/Invoice/Session/Sensor/Booking/Report/Account"),
        "Role": _list("Reader/Store/Writer/View/Queue/Parser"),
        "verb": _list("load/find/merge/count/check/update/parse/write/sort"),
        "verb2": _list("filter/take/limit/split/append"),
        "key": _list("price/status/name/city/weight/created_at/owner"),
        "key2": _list("year/amount/size/priority/age"),
        "type": _list("str/int/float/bytes/bool"),
        "word": _list("amber/harbour/winter/cedar/delta/lantern"),
        "number": _list("0/1/3/8/12/40/64/100/250/1000"),
        "number2": _list("2/5/7/16/99"),
    },
    keeps_names=True,
)
