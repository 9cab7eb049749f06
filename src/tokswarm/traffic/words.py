"""The words our prompts are made of: common, short, mostly one token each in the usual vocabularies."""

WORDS: tuple[str, ...] = tuple(
    """
    able about above across act action active actor actual add address adult advice affair after again age agent
    agree ahead air alarm album alive allow almost alone along also always among amount angle animal answer appear
    apple apply area arm army around arrive art aside ask author autumn avoid award away baby back bad bag bake
    balance ball band bank bar base basic basket bath beach bean bear beat beauty become bed before began begin
    behind being believe bell belong below bench bend beside best better between beyond big bike bird birth bit
    black blade blank block blood blow blue board boat body boil bold bone book boot border born both bottle bottom
    bowl box branch brave bread break breath bridge brief bright bring broad broken brother brown brush budget build
    bus busy butter button buy cabin cable cake call calm camera camp can cap car card care carry case castle cat
    catch cause cell center chain chair chance change chapter charge chart cheap check cheese chest chief child
    choice choose church circle city claim class clean clear clever climb clock close cloth cloud club coal coast
    coat code coffee coin cold collect color come comfort common company compare concert cook cool copper copy
    corn corner cost cotton could count country couple course cousin cover craft cream create crew crop cross crowd
    crown cry cup curve custom cut cycle daily dance danger dark date daughter dawn day deal dear decide deep deer
    degree deliver demand desert design desk detail device dinner direct dish dive doctor dog door double down draft
    draw dream dress drink drive drop dry duck during dust duty each ear early earn earth ease east easy eat edge
    editor effect effort egg eight either elbow else empty end energy engine enjoy enough enter entire equal escape
    even evening event ever every exact example except expect expert explain eye face fact fair fall family famous
    far farm fast father favor fear feather feed feel fence few field fifty fight figure file fill film final find
    fine finger finish fire firm first fish fit five fix flag flat flavor flight float floor flour flow flower fly
    focus fold follow food foot force forest forget fork form forty forward found four frame free fresh friend from
    front fruit fuel full fun future gain game garden gate gather gentle gift girl give glad glass globe goal goat
    gold good grain grand grant grass gray great green ground group grow guard guess guest guide habit hair half
    hall hammer hand handle happen happy harbor hard harvest hat have head health hear heart heat heavy height help
    hen here hero high hill history hobby hold hole holiday home honest honey hope horse hotel hour house how huge
    human hundred hunt hurry husband ice idea image inch include income indeed inside invite iron island item jacket
    job join joke journey judge juice jump just keen keep kettle key kind king kitchen knee knife knock know label
    ladder lake lamp land large last late laugh law layer lead leaf learn least leather leave left leg lemon less
    lesson letter level library life lift light like limit line lion list listen little live local lock long look
    loose lose lot loud love low lucky lunch machine magic mail main major make man manner many map march mark market
    master match matter may meal mean measure meat media meet member memory mention metal meter method middle might
    mile milk mill mind minute mirror mix model modern moment money month mood moon more morning most mother motion
    mountain mouse mouth move much music must nail name narrow nation nature near neck need nest net never new next
    nice night nine noise none noon north nose note nothing notice novel now number nurse object ocean offer office
    often oil old once onion only open orange order other outside oven over owner pack page paint pair palace pan
    paper parent park part party pass past path patient pause pay peace pen pencil people pepper perfect period
    person phone photo piano pick picture piece pilot pink pipe place plain plan plant plate play please plenty
    pocket poem point police pond pool poor port post pot potato pound power present press pretty price print prize
    problem profit promise proof proud public pull pump pure purple push put quarter queen question quick quiet quite
    race radio rail rain raise range rapid rate rather reach read ready real reason record red reform region regular
    relax remain remember rent repair repeat reply report rescue rest result return rice rich ride right ring rise
    river road rock roof room root rope rose rough round route row royal rule run rush sad safe sail salad salt same
    sample sand save say scale scene school science score sea search season seat second secret section see seed seem
    select sell send sense serve seven several shade shadow shake shape share sharp sheep sheet shelf shell shine
    ship shirt shoe shop shore short should shoulder show shower sign silent silver simple since sing sister six
    size skill skin sky sleep slice slow small smart smell smile smoke smooth snow soap social soft soil soldier some
    song soon sort sound soup source south space speak special speed spend spirit spoon sport spread spring square
    stable staff stage stair stamp stand star start state station stay steady steam steel step stick still stock
    stone stop store storm story straight strange stream street strong student study style such sugar suit summer sun
    supper supply support sure surface surprise sweet swim switch table tail take talk tall task taste tea teach team
    tell ten tent test thank that theater then there thick thin thing think third this those thousand three throat
    through throw ticket tide tie time tiny title today together tomorrow tone tongue tool tooth top total touch
    toward tower town toy track trade train travel tree trip trouble truck true trust truth try tube tune turn twelve
    twenty twice two type uncle under union unit until upper urban use usual valley value van variety vast very view
    village visit voice volume vote wage wait walk wall want warm wash watch water wave way weak wealth wear weather
    week weight welcome well west wet what wheel when where which while white whole wide wife wild will win wind
    window wine wing winter wire wise wish with wolf woman wonder wood wool word work world worth would write wrong
    yard year yellow yes yet you young youth zero zone
    """.split()  # noqa: SIM905 - as literals they would take a thousand lines
)
